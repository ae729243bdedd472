# A queue that feeds one function, and the queue of its dead letters.

locals {
  visibility_seconds      = coalesce(var.visibility_seconds, 6 * var.consumer_timeout_seconds)
  dead_visibility_seconds = coalesce(var.dead_visibility_seconds, 6 * var.dead_consumer_timeout_seconds)
}

resource "aws_sqs_queue" "this" {
  name                       = var.name
  visibility_timeout_seconds = local.visibility_seconds
  message_retention_seconds  = var.retention_seconds
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = var.kms_key_arn == null ? true : null
  kms_master_key_id          = var.kms_key_arn
  tags                       = var.tags

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 5
  })

  lifecycle {
    # Less, and a message that is still being worked on is given to a second function, and counted as failed once more.
    precondition {
      condition     = local.visibility_seconds >= 6 * var.consumer_timeout_seconds
      error_message = "visibility_seconds of ${var.name} is ${local.visibility_seconds}: at least six times the consumer's timeout, ${6 * var.consumer_timeout_seconds}."
    }
    precondition {
      condition     = local.visibility_seconds <= 43200
      error_message = "visibility_seconds of ${var.name} is ${local.visibility_seconds}: SQS allows 43200."
    }
    precondition {
      condition     = var.dead_retention_seconds > var.retention_seconds
      error_message = "dead_retention_seconds of ${var.name} is ${var.dead_retention_seconds}: more than retention_seconds, ${var.retention_seconds}, or a letter that died late is gone at once."
    }
  }
}

resource "aws_sqs_queue" "dead" {
  name                       = "${var.name}-dead"
  visibility_timeout_seconds = local.dead_visibility_seconds
  message_retention_seconds  = var.dead_retention_seconds
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = var.kms_key_arn == null ? true : null
  kms_master_key_id          = var.kms_key_arn
  tags                       = var.tags

  lifecycle {
    precondition {
      condition     = local.dead_visibility_seconds >= 6 * var.dead_consumer_timeout_seconds
      error_message = "dead_visibility_seconds of ${var.name} is ${local.dead_visibility_seconds}: at least six times the consumer's timeout, ${6 * var.dead_consumer_timeout_seconds}."
    }
  }
}

# Nobody else's messages end here.
resource "aws_sqs_queue_redrive_allow_policy" "dead" {
  queue_url = aws_sqs_queue.dead.id
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.this.arn]
  })
}
