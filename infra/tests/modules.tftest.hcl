# The modules by themselves: what they refuse, and what is always on.

mock_provider "aws" {
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/r" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/aws/lambda/f" }
  }
  mock_resource "aws_lambda_function" {
    defaults = { arn = "arn:aws:lambda:eu-central-1:123456789012:function:f" }
  }
}

variables {
  name = "f"
}

run "queue" {
  module { source = "./modules/queue" }
  variables {
    consumer_timeout_seconds      = 600
    dead_consumer_timeout_seconds = 300
  }
  assert {
    condition     = aws_sqs_queue.this.visibility_timeout_seconds == 3600 && aws_sqs_queue.dead.visibility_timeout_seconds == 1800
    error_message = "Visibility follows the consumer's timeout."
  }
  assert {
    condition     = aws_sqs_queue.this.sqs_managed_sse_enabled && aws_sqs_queue.dead.sqs_managed_sse_enabled
    error_message = "Messages and dead letters are encrypted."
  }
  assert {
    condition     = jsondecode(aws_sqs_queue.this.redrive_policy) == { deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 }
    error_message = "A message that failed five times is a dead letter."
  }
  assert {
    condition     = jsondecode(aws_sqs_queue_redrive_allow_policy.dead.redrive_allow_policy).sourceQueueArns == [aws_sqs_queue.this.arn]
    error_message = "The dead letters are those of this queue only."
  }
  assert {
    condition     = aws_sqs_queue.dead.message_retention_seconds > aws_sqs_queue.this.message_retention_seconds
    error_message = "Dead letters outlive messages."
  }
}

run "queue_with_a_key" {
  module { source = "./modules/queue" }
  variables {
    consumer_timeout_seconds      = 600
    dead_consumer_timeout_seconds = 300
    kms_key_arn                   = "arn:aws:kms:eu-central-1:123456789012:key/k"
  }
  assert {
    condition     = alltrue([for q in [aws_sqs_queue.this, aws_sqs_queue.dead] : q.kms_master_key_id == var.kms_key_arn])
    error_message = "Messages and dead letters are encrypted by the key."
  }
}

run "queue_whose_messages_reappear_too_early" {
  command = plan
  module { source = "./modules/queue" }
  variables {
    consumer_timeout_seconds      = 600
    visibility_seconds            = 3599
    dead_consumer_timeout_seconds = 300
  }
  expect_failures = [aws_sqs_queue.this]
}

run "queue_whose_dead_letters_reappear_too_early" {
  command = plan
  module { source = "./modules/queue" }
  variables {
    consumer_timeout_seconds      = 600
    dead_consumer_timeout_seconds = 300
    dead_visibility_seconds       = 1799
  }
  expect_failures = [aws_sqs_queue.dead]
}

run "queue_whose_dead_letters_vanish" {
  command = plan
  module { source = "./modules/queue" }
  variables {
    consumer_timeout_seconds      = 600
    dead_consumer_timeout_seconds = 300
    retention_seconds             = 345600
    dead_retention_seconds        = 345600
  }
  expect_failures = [aws_sqs_queue.this]
}

run "ledger" {
  module { source = "./modules/ledger" }
  assert {
    condition     = aws_dynamodb_table.this.hash_key == "pk" && aws_dynamodb_table.this.range_key == "sk"
    error_message = "Items are found by pk and sk."
  }
  assert {
    condition     = toset(aws_dynamodb_table.this.attribute[*].type) == toset(["S"])
    error_message = "Keys are texts."
  }
  assert {
    condition     = aws_dynamodb_table.this.billing_mode == "PAY_PER_REQUEST" && aws_dynamodb_table.this.deletion_protection_enabled
    error_message = "On demand, and not deleted by mistake."
  }
  assert {
    condition     = aws_dynamodb_table.this.point_in_time_recovery[0].enabled && aws_dynamodb_table.this.server_side_encryption[0].enabled
    error_message = "Recoverable and encrypted."
  }
  assert {
    condition     = aws_dynamodb_table.this.stream_enabled && aws_dynamodb_table.this.stream_view_type == "NEW_IMAGE"
    error_message = "The stream shows items as they are now."
  }
}

run "function" {
  module { source = "./modules/function" }
  variables {
    description     = "d"
    zip             = "./tests/zips/writer/bootstrap.zip"
    memory_mb       = 512
    timeout_seconds = 60
    environment     = { TIMELAKE_NAME = "n" }
    queues          = { work = { arn = "arn:aws:sqs:eu-central-1:123456789012:work", max_concurrency = 7 } }
    stream          = { arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/t/stream/2026", filter = "{}" }
  }
  assert {
    condition     = aws_lambda_function.this.runtime == "provided.al2023" && aws_lambda_function.this.architectures == tolist(["arm64"])
    error_message = "An executable for arm64, unless said otherwise."
  }
  assert {
    condition     = aws_lambda_function.this.environment[0].variables == tomap({ TIMELAKE_NAME = "n", TIMELAKE_MEMORY_MB = "512" })
    error_message = "The function knows its memory."
  }
  assert {
    condition     = aws_lambda_event_source_mapping.queue["work"].batch_size == 1
    error_message = "One message a call."
  }
  assert {
    condition     = aws_lambda_event_source_mapping.queue["work"].function_response_types == toset(["ReportBatchItemFailures"])
    error_message = "The function tells which messages failed."
  }
  assert {
    condition     = aws_lambda_event_source_mapping.queue["work"].scaling_config[0].maximum_concurrency == 7
    error_message = "The queue calls so many at a time."
  }
  assert {
    condition = (
      aws_lambda_event_source_mapping.stream[0].maximum_retry_attempts > 0 && aws_lambda_event_source_mapping.stream[0].maximum_retry_attempts < 10
      && aws_lambda_event_source_mapping.stream[0].bisect_batch_on_function_error
      && aws_lambda_event_source_mapping.stream[0].function_response_types == toset(["ReportBatchItemFailures"])
    )
    error_message = "A bad record does not hold up the stream."
  }
  assert {
    condition     = aws_cloudwatch_log_group.this.retention_in_days == 30 && aws_lambda_function.this.logging_config[0].log_group == aws_cloudwatch_log_group.this.name
    error_message = "The log ends some day."
  }
  assert {
    condition     = { for s in output.statements : s.Sid => s.Resource }["Streams"] == ["arn:aws:dynamodb:eu-central-1:123456789012:table/t/stream/*"]
    error_message = "Streams of this table only."
  }
}

run "function_with_wildcards" {
  command = plan
  module { source = "./modules/function" }
  variables {
    description     = "d"
    zip             = "./tests/zips/writer/bootstrap.zip"
    memory_mb       = 512
    timeout_seconds = 60
    statements      = [{ sid = "All", actions = ["s3:*"], resources = ["*"] }]
  }
  expect_failures = [var.statements]
}

run "function_without_a_zip" {
  command = plan
  module { source = "./modules/function" }
  variables {
    description     = "d"
    zip             = "./nowhere/bootstrap.zip"
    memory_mb       = 512
    timeout_seconds = 60
  }
  expect_failures = [aws_lambda_function.this]
}

run "function_that_throttles_its_messages" {
  command = plan
  module { source = "./modules/function" }
  variables {
    description          = "d"
    zip                  = "./tests/zips/writer/bootstrap.zip"
    memory_mb            = 512
    timeout_seconds      = 60
    reserved_concurrency = 6
    queues               = { work = { arn = "arn:aws:sqs:eu-central-1:123456789012:work", max_concurrency = 7 } }
  }
  expect_failures = [aws_lambda_function.this]
}
