# The bucket (unless one is given), the databases, the ledger.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition
  region    = data.aws_region.current.name

  bucket     = var.bucket == null ? aws_s3_bucket.this[0].id : var.bucket
  bucket_arn = "arn:${local.partition}:s3:::${local.bucket}"
  warehouse  = "s3://${local.bucket}/warehouse"
  jobs       = "s3://${local.bucket}/jobs"
}

resource "aws_s3_bucket" "this" {
  count = var.bucket == null ? 1 : 0

  bucket        = "${var.name}-${local.account}-${local.region}"
  force_destroy = var.bucket_force_destroy
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "this" {
  count = var.bucket == null ? 1 : 0

  bucket                  = aws_s3_bucket.this[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  count = var.bucket == null ? 1 : 0

  bucket = aws_s3_bucket.this[0].id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  count = var.bucket == null ? 1 : 0

  bucket = aws_s3_bucket.this[0].id
  rule {
    bucket_key_enabled = var.kms_key_arn != null
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

# What a killed upload leaves is in no listing and costs like a file.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  count = var.bucket == null ? 1 : 0

  bucket = aws_s3_bucket.this[0].id
  rule {
    id     = "unfinished-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  count = var.bucket == null && var.bucket_require_tls ? 1 : 0

  bucket = aws_s3_bucket.this[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "EncryptedOnItsWay"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.bucket_arn, "${local.bucket_arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
  depends_on = [aws_s3_bucket_public_access_block.this]
}

resource "aws_glue_catalog_database" "this" {
  for_each = var.create_databases ? var.databases : []

  name         = each.key
  location_uri = "${local.warehouse}/${each.key}"
  tags         = var.tags
}

module "ledger" {
  source = "./modules/ledger"

  name                = "${var.name}-ledger"
  kms_key_arn         = var.kms_key_arn
  deletion_protection = var.deletion_protection
  tags                = var.tags
}
