output "bucket" {
  description = "Bucket of new tables and of the folders of jobs."
  value       = module.timelake.bucket
}

output "ledger_table" {
  description = "DynamoDB table of the ledger."
  value       = module.timelake.ledger_table
}

output "queue_urls" {
  description = "Addresses of the queues, by name."
  value       = module.timelake.queue_urls
}

output "state_machine_arn" {
  description = "What starts and follows a job."
  value       = module.timelake.state_machine_arn
}

output "function_names" {
  description = "Names of the functions."
  value       = module.timelake.function_names
}

output "timelake_toml" {
  description = "Section for timelake.toml."
  value       = module.timelake.timelake_toml
}
