variable "name" {
  description = "Name of the function, of its role and of its log group."
  type        = string
  validation {
    condition     = length(var.name) <= 64
    error_message = "At most 64 characters."
  }
}

variable "description" {
  description = "What the function does."
  type        = string
}

variable "zip" {
  description = "Path of the zip that holds the executable `bootstrap`."
  type        = string
}

variable "architecture" {
  description = "What the executable was built for: arm64 or x86_64."
  type        = string
  default     = "arm64"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "arm64 or x86_64."
  }
}

variable "memory_mb" {
  description = "Memory; processors come with it, one per 1,769 MB."
  type        = number
  validation {
    condition     = var.memory_mb >= 128 && var.memory_mb <= 10240
    error_message = "From 128 to 10240."
  }
}

variable "timeout_seconds" {
  description = "Longest call."
  type        = number
  validation {
    condition     = var.timeout_seconds >= 1 && var.timeout_seconds <= 900
    error_message = "From 1 to 900."
  }
}

variable "reserved_concurrency" {
  description = "Calls at a time that are kept for the function and not exceeded; -1 takes from the account's."
  type        = number
  default     = -1
}

variable "environment" {
  description = "Environment variables."
  type        = map(string)
  default     = {}
}

variable "statements" {
  description = "What the function's role may do, beside writing its log and receiving from its sources."
  type = list(object({
    sid       = string
    actions   = list(string)
    resources = list(string)
  }))
  default = []
  validation {
    condition     = alltrue([for action in flatten(var.statements[*].actions) : !strcontains(action, "*")])
    error_message = "Actions are named one by one, without wildcards."
  }
  validation {
    condition     = !contains(flatten(var.statements[*].resources), "*")
    error_message = "Resources are named."
  }
}

variable "queues" {
  description = "Queues whose messages call the function, one message a call; max_concurrency bounds the calls at a time."
  type = map(object({
    arn             = string
    max_concurrency = optional(number)
  }))
  default = {}
  validation {
    condition     = alltrue([for q in var.queues : try(q.max_concurrency >= 2 && q.max_concurrency <= 1000, q.max_concurrency == null)])
    error_message = "max_concurrency is from 2 to 1000."
  }
}

variable "stream" {
  description = "DynamoDB stream whose records call the function, and which of them (a filter pattern)."
  type = object({
    arn    = string
    filter = string
  })
  default = null
}

variable "kms_key_arn" {
  description = "Key of what the function reads and writes; null when AWS keeps the keys."
  type        = string
  default     = null
}

variable "log_retention_days" {
  description = "How long logs are kept."
  type        = number
  default     = 30
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}
