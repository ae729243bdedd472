output "bucket" {
  description = "Bucket of new tables and of the folders of jobs."
  value       = local.bucket
}

output "ledger_table" {
  description = "DynamoDB table of the ledger."
  value       = module.ledger.name
}

output "queue_urls" {
  description = "Addresses of the queues, by name."
  value       = { for name, queue in module.queue : name => queue.url }
}

output "state_machine_arn" {
  description = "What starts and follows a job."
  value       = aws_sfn_state_machine.backfill.arn
}

output "function_names" {
  description = "Names of the functions."
  value       = { for name, function in module.function : name => function.name }
}

output "timelake_toml" {
  description = "Section for timelake.toml: `--lake aws:NAME` finds the lake by it."
  value = join("\n", concat([
    "[lakes.${var.name}]",
    "region = \"${local.region}\"",
    ], [for url in compact([lookup(var.extra_environment, "AWS_ENDPOINT_URL", "")]) : "endpoint_url = \"${url}\""], [
    "ledger_table = \"${module.ledger.name}\"",
    "work_queue_url = \"${module.queue["work"].url}\"",
    "land_close_queue_url = \"${module.queue["land-close"].url}\"",
    "close_queue_url = \"${module.queue["close"].url}\"",
    "refresh_queue_url = \"${module.queue["refresh"].url}\"",
    "warehouse = \"${local.warehouse}\"",
    "jobs = \"${local.jobs}\"",
    "state_machine_arn = \"${aws_sfn_state_machine.backfill.arn}\"",
    "writer_memory_mb = ${local.environment.TIMELAKE_WRITER_MEMORY_MB}",
    "",
  ]))
}
