# A letter that the sweeper takes at once is hardly ever seen lying in its queue: received ones count, too.
resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  for_each = local.queues

  alarm_name          = "${module.queue[each.key].dead_name}-not-empty"
  alarm_description   = "Messages of ${var.name}-${each.key} failed five times: `timelake backfill status` tells which job waits, and why"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags

  metric_query {
    id          = "letters"
    expression  = "visible + received"
    label       = "dead letters"
    return_data = true
  }
  metric_query {
    id = "visible"
    metric {
      namespace   = "AWS/SQS"
      metric_name = "ApproximateNumberOfMessagesVisible"
      dimensions  = { QueueName = module.queue[each.key].dead_name }
      stat        = "Maximum"
      period      = 300
    }
  }
  metric_query {
    id = "received"
    metric {
      namespace   = "AWS/SQS"
      metric_name = "NumberOfMessagesReceived"
      dimensions  = { QueueName = module.queue[each.key].dead_name }
      stat        = "Sum"
      period      = 300
    }
  }
}

# Nothing else notices what gets lost.
resource "aws_cloudwatch_metric_alarm" "sweeper_errors" {
  alarm_name          = "${module.function["sweeper"].name}-errors"
  alarm_description   = "The sweeper fails: lost messages and dead letters are not looked after"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  dimensions          = { FunctionName = module.function["sweeper"].name }
  statistic           = "Sum"
  period              = 300
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}
