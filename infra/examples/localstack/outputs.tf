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
    # Where timelake finds the lake (in the folder that it is called from):
    terraform -chdir=${abspath(path.root)} output -raw timelake_toml > timelake.toml
    # For the command line of AWS (the package awscli) and for timelake:
    export AWS_ENDPOINT_URL=${var.endpoint} AWS_REGION=${var.region} AWS_DEFAULT_REGION=${var.region}
    export AWS_ACCESS_KEY_ID=${var.access_key} AWS_SECRET_ACCESS_KEY=${var.secret_key}
    # Source files, where the functions may read them:
    printf 'ts,device_id,value,quality\n2024-05-01T00:00:00Z,a,20.5,0\n2024-05-01T00:01:00Z,a,20.7,0\n' > readings.csv
    aws s3 mb s3://exports && aws s3 cp readings.csv s3://exports/2024/
    # A table for them:
    timelake table create ${sort(var.databases)[0]}.sensor --lake aws:${var.name} --time-column ts --series-key device_id \
      --partition 'month(ts)' --columns 'ts:timestamptz,device_id:string,value:double,quality:int'
    # A job, and how it ends:
    aws stepfunctions start-execution --state-machine-arn ${module.timelake.state_machine_arn} \
      --input '{"request": {"table": "${sort(var.databases)[0]}.sensor", "rows": {"from": ["s3://exports/2024/"]}}}'
    aws stepfunctions list-executions --state-machine-arn ${module.timelake.state_machine_arn}
    # The same in one command: it follows this job, or says that it is published:
    timelake backfill ${sort(var.databases)[0]}.sensor --lake aws:${var.name} --from s3://exports/2024/
  EOT
}
