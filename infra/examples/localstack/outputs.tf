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

locals {
  # The command line reaches the emulator from outside.
  timelake_toml = replace(module.timelake.timelake_toml, coalesce(var.functions_endpoint, var.endpoint), var.endpoint)
}

output "timelake_toml" {
  description = "Section for timelake.toml."
  value       = local.timelake_toml
}

output "try" {
  description = "Commands to try it with."
  value       = <<-EOT
    # For the command line of AWS and for timelake:
    export AWS_ENDPOINT_URL=${var.endpoint} AWS_REGION=${var.region} AWS_ACCESS_KEY_ID=${var.access_key} AWS_SECRET_ACCESS_KEY=${var.secret_key}
    # Source files, where the functions may read them:
    aws s3 mb s3://exports && aws s3 cp --recursive export/ s3://exports/2024/
    # A table for them:
    timelake table create ${sort(var.databases)[0]}.sensor --lake aws:${var.name} --time-column ts --series-key device_id \
      --partition 'month(ts)' --columns 'ts:timestamptz,device_id:string,value:double,quality:int'
    # A job, and how it ends:
    aws stepfunctions start-execution --state-machine-arn ${module.timelake.state_machine_arn} \
      --input '{"request": {"table": "${sort(var.databases)[0]}.sensor", "rows": {"from": ["s3://exports/2024/"]}}}'
    aws stepfunctions list-executions --state-machine-arn ${module.timelake.state_machine_arn}
    # For timelake.toml:
    ${trimspace(local.timelake_toml)}
  EOT
}
