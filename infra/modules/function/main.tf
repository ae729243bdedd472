# A function with a role and a log of its own, and what calls it.

locals {
  # A throttled call gives its message back: after five of those it is a dead letter that nobody looked at.
  most_calls_at_a_time = sum(concat([0], [for q in var.queues : coalesce(q.max_concurrency, 0)]))

  statements = concat(
    [for s in var.statements : { Sid = s.sid, Effect = "Allow", Action = s.actions, Resource = s.resources }],
    [{
      Sid      = "Log"
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
      Resource = ["${aws_cloudwatch_log_group.this.arn}:*"]
    }],
    length(var.queues) == 0 ? [] : [{
      Sid    = "Receive"
      Effect = "Allow"
      Action = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
      # In the order of the names, so that a plan does not change by itself.
      Resource = [for name in sort(keys(var.queues)) : var.queues[name].arn]
    }],
    var.stream == null ? [] : [{
      Sid      = "Stream"
      Effect   = "Allow"
      Action   = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
      Resource = [var.stream.arn]
      }, {
      Sid      = "Streams"
      Effect   = "Allow"
      Action   = ["dynamodb:ListStreams"]
      Resource = ["${split("/stream/", var.stream.arn)[0]}/stream/*"]
    }],
    var.kms_key_arn == null ? [] : [{
      Sid      = "Key"
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"]
      Resource = [var.kms_key_arn]
    }],
  )
}

resource "aws_cloudwatch_log_group" "this" {
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_retention_days
  tags              = var.tags
}

resource "aws_iam_role" "this" {
  name = var.name
  tags = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "lambda.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "this" {
  name   = "function"
  role   = aws_iam_role.this.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}

resource "aws_lambda_function" "this" {
  function_name                  = var.name
  description                    = var.description
  role                           = aws_iam_role.this.arn
  runtime                        = "provided.al2023"
  handler                        = "bootstrap"
  architectures                  = [var.architecture]
  filename                       = var.zip
  source_code_hash               = fileexists(var.zip) ? filebase64sha256(var.zip) : null
  memory_size                    = var.memory_mb
  timeout                        = var.timeout_seconds
  reserved_concurrent_executions = var.reserved_concurrency
  tags                           = var.tags

  environment {
    variables = merge(var.environment, { TIMELAKE_MEMORY_MB = tostring(var.memory_mb) })
  }
  logging_config {
    log_format = "JSON"
    log_group  = aws_cloudwatch_log_group.this.name
  }

  # Without it the first calls fail.
  depends_on = [aws_iam_role_policy.this]

  lifecycle {
    precondition {
      condition     = fileexists(var.zip)
      error_message = "There is no ${var.zip}: build the functions first, or say in `zips` where they are."
    }
    precondition {
      condition     = var.reserved_concurrency == -1 || var.reserved_concurrency >= local.most_calls_at_a_time
      error_message = "reserved_concurrency of ${var.name} is ${var.reserved_concurrency}: its queues alone call it up to ${local.most_calls_at_a_time} times at once."
    }
  }
}

resource "aws_lambda_event_source_mapping" "queue" {
  for_each = var.queues

  function_name    = aws_lambda_function.this.arn
  event_source_arn = each.value.arn
  # A message is minutes of work: its timeout, its tries and its death are its own.
  batch_size              = 1
  function_response_types = ["ReportBatchItemFailures"]
  tags                    = var.tags

  dynamic "scaling_config" {
    for_each = each.value.max_concurrency == null ? [] : [each.value.max_concurrency]
    content {
      maximum_concurrency = scaling_config.value
    }
  }
}

# A hint that work is over; what gets lost is found by the schedule. So a record that cannot be handled is soon passed over, instead
# of holding up all that come after it.
resource "aws_lambda_event_source_mapping" "stream" {
  count = var.stream == null ? 0 : 1

  function_name                      = aws_lambda_function.this.arn
  event_source_arn                   = var.stream.arn
  starting_position                  = "LATEST"
  batch_size                         = 100
  maximum_batching_window_in_seconds = 1
  maximum_retry_attempts             = 3
  maximum_record_age_in_seconds      = 300
  bisect_batch_on_function_error     = true
  function_response_types            = ["ReportBatchItemFailures"]
  tags                               = var.tags

  filter_criteria {
    filter {
      pattern = var.stream.filter
    }
  }
}
