# Everything, on an emulator of AWS on this machine.

provider "aws" {
  region                      = var.region
  access_key                  = var.access_key
  secret_key                  = var.secret_key
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  # The account is part of ARNs: it has to be asked for.
  skip_requesting_account_id = false

  endpoints {
    cloudwatch     = var.endpoint
    cloudwatchlogs = var.endpoint
    dynamodb       = var.endpoint
    events         = var.endpoint
    glue           = var.endpoint
    iam            = var.endpoint
    lambda         = var.endpoint
    s3             = var.endpoint
    sfn            = var.endpoint
    sqs            = var.endpoint
    sts            = var.endpoint
  }
}

module "timelake" {
  source = "../.."

  name                 = var.name
  zips                 = var.zips
  architecture         = var.architecture
  databases            = var.databases
  sources              = var.sources
  functions            = var.functions
  concurrency          = var.concurrency
  sweep_minutes        = var.sweep_minutes
  longest_poll_seconds = 5
  job_timeout_days     = 0.1
  bucket_force_destroy = true
  bucket_require_tls   = false
  deletion_protection  = false
  extra_environment    = { AWS_ENDPOINT_URL = coalesce(var.functions_endpoint, var.endpoint) }
}

# An emulator that enforces IAM asks for a right to batches, which AWS has in sqs:SendMessage.
resource "aws_iam_role_policy" "batches" {
  for_each = toset(["planner", "writer", "finalizer", "refresher", "sweeper"])

  name = "batches"
  role = module.timelake.function_names[each.key]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["sqs:SendMessageBatch"]
      Resource = ["arn:aws:sqs:${var.region}:*:${var.name}-*"]
    }]
  })
}
