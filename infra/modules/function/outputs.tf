output "name" {
  description = "Name of the function."
  value       = aws_lambda_function.this.function_name
}

output "arn" {
  description = "ARN of the function."
  value       = aws_lambda_function.this.arn
}

output "statements" {
  description = "What the function's role may do."
  value       = local.statements
}

output "environment" {
  description = "Its environment variables."
  value       = aws_lambda_function.this.environment[0].variables
}

output "event_sources" {
  description = "The queues that call it, by name."
  value       = aws_lambda_event_source_mapping.queue
}
