# Starts a job and follows it to its end. The job does not need it: aborted, it leaves the job running.

locals {
  state_machine = templatefile("${path.module}/state_machine.json", {
    partition            = local.partition
    planner_arn          = module.function["planner"].arn
    timeout_seconds      = floor(var.job_timeout_days * 86400)
    longest_poll_seconds = var.longest_poll_seconds
    # Both calls may be repeated: a planner that was cut off goes on where it stopped. `unavailable` is the functions' own word
    # for what another try may mend.
    retry = jsonencode([{
      ErrorEquals = [
        "Lambda.TooManyRequestsException", "Lambda.ServiceException", "Lambda.AWSLambdaException", "Lambda.SdkClientException",
        "Lambda.ClientExecutionTimeoutException", "Lambda.Unknown", "Sandbox.Timedout", "Runtime.ExitError", "unavailable",
      ]
      IntervalSeconds = 2
      BackoffRate     = 2
      MaxDelaySeconds = 60
      MaxAttempts     = 8
      JitterStrategy  = "FULL"
    }])
  })
}

resource "aws_cloudwatch_log_group" "state_machine" {
  name              = "/aws/vendedlogs/states/${var.name}-backfill"
  retention_in_days = var.log_retention_days
  tags              = var.tags
}

resource "aws_iam_role" "state_machine" {
  name = "${var.name}-backfill"
  tags = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "states.amazonaws.com" }
      Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
    }]
  })
}

resource "aws_iam_role_policy" "state_machine" {
  name = "backfill"
  role = aws_iam_role.state_machine.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Sid = "Plan", Effect = "Allow", Action = ["lambda:InvokeFunction"], Resource = [module.function["planner"].arn] },
      # CloudWatch knows these for all logs only.
      {
        Sid    = "Log"
        Effect = "Allow"
        Action = [
          "logs:CreateLogDelivery", "logs:DeleteLogDelivery", "logs:DescribeLogGroups", "logs:DescribeResourcePolicies",
          "logs:GetLogDelivery", "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:UpdateLogDelivery",
        ]
        Resource = ["*"]
      },
    ]
  })
}

resource "aws_sfn_state_machine" "backfill" {
  name       = "${var.name}-backfill"
  role_arn   = aws_iam_role.state_machine.arn
  definition = local.state_machine
  tags       = var.tags

  # Without data: requests and reports hold names and values of the user's.
  logging_configuration {
    level                  = "ERROR"
    include_execution_data = false
    log_destination        = "${aws_cloudwatch_log_group.state_machine.arn}:*"
  }
  depends_on = [aws_iam_role_policy.state_machine]
}

# Starts jobs by itself, if that is wanted.

resource "aws_cloudwatch_event_rule" "trigger" {
  count = var.trigger == null ? 0 : 1

  name                = "${var.name}-trigger"
  description         = "Starts a backfill"
  schedule_expression = var.trigger.schedule
  event_pattern       = var.trigger.event_pattern
  tags                = var.tags
}

resource "aws_iam_role" "trigger" {
  count = var.trigger == null ? 0 : 1

  name = "${var.name}-trigger"
  tags = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "events.amazonaws.com" }
      Condition = { ArnEquals = { "aws:SourceArn" = aws_cloudwatch_event_rule.trigger[0].arn } }
    }]
  })
}

resource "aws_iam_role_policy" "trigger" {
  count = var.trigger == null ? 0 : 1

  name = "start"
  role = aws_iam_role.trigger[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Sid = "Start", Effect = "Allow", Action = ["states:StartExecution"], Resource = [aws_sfn_state_machine.backfill.arn] },
    ]
  })
}

resource "aws_cloudwatch_event_target" "trigger" {
  count = var.trigger == null ? 0 : 1

  rule     = aws_cloudwatch_event_rule.trigger[0].name
  arn      = aws_sfn_state_machine.backfill.arn
  role_arn = aws_iam_role.trigger[0].arn
  input    = var.trigger.input_paths == null ? var.trigger.input : null

  dynamic "input_transformer" {
    for_each = var.trigger.input_paths == null ? [] : [var.trigger]
    content {
      input_paths    = input_transformer.value.input_paths
      input_template = input_transformer.value.input
    }
  }
}
