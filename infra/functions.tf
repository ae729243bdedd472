# The five functions and what calls them.

locals {
  environment = merge({
    TIMELAKE_NAME                 = var.name
    TIMELAKE_LEDGER_TABLE         = module.ledger.name
    TIMELAKE_WORK_QUEUE_URL       = module.queue["work"].url
    TIMELAKE_LAND_CLOSE_QUEUE_URL = module.queue["land-close"].url
    TIMELAKE_CLOSE_QUEUE_URL      = module.queue["close"].url
    TIMELAKE_REFRESH_QUEUE_URL    = module.queue["refresh"].url
    TIMELAKE_WAREHOUSE            = local.warehouse
    TIMELAKE_JOBS                 = local.jobs
    TIMELAKE_WRITER_MEMORY_MB     = tostring(var.functions.writer.memory_mb)
  }, var.extra_environment)

  purpose = {
    planner   = "Plans backfills: inventory, plan, messages; answers how a job stands"
    writer    = "Lands sources and writes units"
    finalizer = "Stages, validates and publishes what was written"
    refresher = "Appends changed ranges to the feed of a table"
    sweeper   = "Finds what got lost: messages, dead letters, leases, files of attempts that lost"
  }
  sources = {
    planner   = { land-close = { arn = module.queue["land-close"].arn, max_concurrency = var.concurrency.land_close } }
    writer    = { work = { arn = module.queue["work"].arn, max_concurrency = var.concurrency.work } }
    finalizer = { close = { arn = module.queue["close"].arn, max_concurrency = var.concurrency.close } }
    refresher = { refresh = { arn = module.queue["refresh"].arn, max_concurrency = var.concurrency.refresh } }
    sweeper   = { for q in keys(local.queues) : "${q}-dead" => { arn = module.queue[q].dead_arn, max_concurrency = var.concurrency.dead } }
  }
}

module "function" {
  source   = "./modules/function"
  for_each = local.purpose

  name                 = "${var.name}-${each.key}"
  description          = each.value
  zip                  = "${var.zips}/${each.key}/bootstrap.zip"
  architecture         = var.architecture
  memory_mb            = var.functions[each.key].memory_mb
  timeout_seconds      = var.functions[each.key].timeout_seconds
  reserved_concurrency = var.functions[each.key].reserved_concurrency
  environment          = local.environment
  statements           = local.statements[each.key]
  queues               = local.sources[each.key]
  kms_key_arn          = var.kms_key_arn
  log_retention_days   = var.log_retention_days
  tags                 = var.tags

  # Counters that went down: the last unit of a round is done, or there is room for more messages.
  stream = each.key != "sweeper" ? null : {
    arn    = module.ledger.stream_arn
    filter = jsonencode({ eventName = ["MODIFY"], dynamodb = { Keys = { sk = { S = [{ prefix = "CTR#" }] } } } })
  }
}

# What lies around is looked for as soon as it may be missed; what is left behind is only space.
locals {
  schedules = {
    sweep   = { expression = "rate(${var.sweep_minutes} minutes)", input = null }
    collect = { expression = "rate(1 day)", input = jsonencode({ action = "collect" }) }
  }
}

resource "aws_cloudwatch_event_rule" "sweeper" {
  for_each = local.schedules

  name                = "${var.name}-${each.key}"
  description         = "Calls the sweeper"
  schedule_expression = each.value.expression
  tags                = var.tags
}

resource "aws_cloudwatch_event_target" "sweeper" {
  for_each = local.schedules

  rule  = aws_cloudwatch_event_rule.sweeper[each.key].name
  arn   = module.function["sweeper"].arn
  input = each.value.input
}

resource "aws_lambda_permission" "sweeper" {
  for_each = local.schedules

  statement_id  = each.key
  action        = "lambda:InvokeFunction"
  function_name = module.function["sweeper"].name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.sweeper[each.key].arn
}

# The next sweep is as good as another try at this one.
resource "aws_lambda_function_event_invoke_config" "sweep" {
  function_name                = module.function["sweeper"].name
  maximum_retry_attempts       = 0
  maximum_event_age_in_seconds = 60 * var.sweep_minutes
}
