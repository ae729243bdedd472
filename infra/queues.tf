# work → writer, land-close → planner, close → finalizer, refresh → refresher; the dead letters of all → sweeper.

locals {
  queues = {
    work       = var.functions.writer
    land-close = var.functions.planner
    close      = var.functions.finalizer
    refresh    = var.functions.refresher
  }
}

module "queue" {
  source   = "./modules/queue"
  for_each = local.queues

  name                          = "${var.name}-${each.key}"
  consumer_timeout_seconds      = each.value.timeout_seconds
  dead_consumer_timeout_seconds = var.functions.sweeper.timeout_seconds
  retention_seconds             = var.queue_retention_days * 86400
  kms_key_arn                   = var.kms_key_arn
  tags                          = var.tags
}
