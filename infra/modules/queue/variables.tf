variable "name" {
  description = "Name of the queue; its dead letters go to NAME-dead."
  type        = string
}

variable "consumer_timeout_seconds" {
  description = "Timeout of the function that receives from the queue."
  type        = number
}

variable "visibility_seconds" {
  description = "How long a received message is hidden from others; null is six times the consumer's timeout."
  type        = number
  default     = null
}

variable "retention_seconds" {
  description = "How long a message waits to be received."
  type        = number
  default     = 345600 # 4 days
}

variable "dead_consumer_timeout_seconds" {
  description = "Timeout of the function that receives the dead letters."
  type        = number
}

variable "dead_visibility_seconds" {
  description = "The same as visibility_seconds, for dead letters."
  type        = number
  default     = null
}

variable "dead_retention_seconds" {
  description = "How long a dead letter is kept. A letter keeps the time at which it was first sent, so this must be longer than retention_seconds."
  type        = number
  default     = 1209600 # 14 days, the longest there is
}

variable "kms_key_arn" {
  description = "Key that encrypts the messages; null takes SQS's own."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}
