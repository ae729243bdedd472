output "url" {
  description = "Address of the queue."
  value       = aws_sqs_queue.this.url
}

output "arn" {
  description = "ARN of the queue."
  value       = aws_sqs_queue.this.arn
}

output "dead_arn" {
  description = "ARN of the queue of dead letters."
  value       = aws_sqs_queue.dead.arn
}

output "dead_name" {
  description = "Name of the queue of dead letters."
  value       = aws_sqs_queue.dead.name
}
