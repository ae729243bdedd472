variable "name" {
  description = "Name of the lake, as in `--lake aws:NAME`; all resources are named after it."
  type        = string
  default     = "timelake"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,29}$", var.name))
    error_message = "A small letter, then small letters, digits and dashes, at most 30 in all."
  }
}

variable "zips" {
  description = "Folder of the functions' executables: <function>/bootstrap.zip, as cargo-lambda lays them out."
  type        = string
  default     = "../target/lambda"
}

variable "architecture" {
  description = "What they were built for: arm64 (cheaper) or x86_64."
  type        = string
  default     = "arm64"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "arm64 or x86_64."
  }
}

variable "bucket" {
  description = "Bucket for new tables and for the folders of jobs; null makes one."
  type        = string
  default     = null
}

variable "bucket_force_destroy" {
  description = "Destroy the bucket that was made together with all tables in it."
  type        = bool
  default     = false
}

variable "bucket_require_tls" {
  description = "Refuse requests to the bucket that was made which are not encrypted on their way."
  type        = bool
  default     = true
}

variable "databases" {
  description = "Glue databases (namespaces) whose tables may be loaded."
  type        = set(string)
  default     = ["iot"]
  validation {
    condition     = length(var.databases) > 0 && alltrue([for d in var.databases : can(regex("^[a-z0-9_]{1,255}$", d))])
    error_message = "At least one; small letters, digits and underscores."
  }
}

variable "create_databases" {
  description = "Make the databases; false when they are there."
  type        = bool
  default     = true
}

variable "table_locations" {
  description = "Where tables of these databases lie that are not below the warehouse: s3://bucket/prefix."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for l in var.table_locations : can(regex("^s3://[a-z0-9.-]+(/[^*?]*[^*?/])?$", l))])
    error_message = "s3://bucket or s3://bucket/prefix, without a slash at the end and without wildcards."
  }
}

variable "sources" {
  description = "Where source files may be read: ARNs of buckets, or of a prefix in one (arn:aws:s3:::exports/site-a)."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for s in var.sources : can(regex("^arn:[a-z-]+:s3:::[a-z0-9.-]+(/[^*?]*[^*?/])?$", s))])
    error_message = "arn:aws:s3:::bucket or arn:aws:s3:::bucket/prefix, without a slash at the end and without wildcards."
  }
}

variable "functions" {
  description = "Memory (MB), longest call (seconds) and kept concurrency (-1: none is kept) of each function."
  type = object({
    planner = optional(object({
      memory_mb            = optional(number, 1769)
      timeout_seconds      = optional(number, 900)
      reserved_concurrency = optional(number, -1)
    }), {})
    writer = optional(object({
      memory_mb            = optional(number, 1769)
      timeout_seconds      = optional(number, 600)
      reserved_concurrency = optional(number, -1)
    }), {})
    finalizer = optional(object({
      memory_mb            = optional(number, 1769)
      timeout_seconds      = optional(number, 900)
      reserved_concurrency = optional(number, -1)
    }), {})
    refresher = optional(object({
      memory_mb            = optional(number, 1769)
      timeout_seconds      = optional(number, 600)
      reserved_concurrency = optional(number, -1)
    }), {})
    sweeper = optional(object({
      memory_mb            = optional(number, 1769)
      timeout_seconds      = optional(number, 300)
      reserved_concurrency = optional(number, -1)
    }), {})
  })
  default = {}
}

variable "concurrency" {
  description = "Most calls at a time for the messages of each queue, from 2 to 1000."
  type = object({
    work       = optional(number, 100)
    land_close = optional(number, 2)
    close      = optional(number, 4)
    refresh    = optional(number, 10)
    dead       = optional(number, 2)
  })
  default = {}
  validation {
    condition     = alltrue([for n in values(var.concurrency) : n >= 2 && n <= 1000])
    error_message = "From 2 to 1000."
  }
}

variable "queue_retention_days" {
  description = "How long a message waits to be received; dead letters are kept for 14 days."
  type        = number
  default     = 4
  validation {
    condition     = var.queue_retention_days >= 1 && var.queue_retention_days < 14
    error_message = "From 1 to 13."
  }
}

variable "sweep_minutes" {
  description = "How often the sweeper looks for what got lost."
  type        = number
  default     = 5
  validation {
    condition     = var.sweep_minutes >= 2 && floor(var.sweep_minutes) == var.sweep_minutes
    error_message = "Whole minutes, at least 2."
  }
}

variable "longest_poll_seconds" {
  description = "The state machine asks how its job stands after 5 seconds, then less and less often, down to once in so many."
  type        = number
  default     = 300
  validation {
    condition     = var.longest_poll_seconds >= 5 && var.longest_poll_seconds <= 3600
    error_message = "From 5 to 3600."
  }
}

variable "job_timeout_days" {
  description = "How long the state machine follows a job. Its history holds 25,000 events, 9 of them for each time it asks."
  type        = number
  default     = 8
  validation {
    condition     = var.job_timeout_days * 86400 * 9 <= 25000 * var.longest_poll_seconds
    error_message = "With this longest_poll_seconds the history is full before."
  }
}

variable "trigger" {
  description = <<-EOT
    Starts jobs by itself: on a schedule (cron(...) or rate(...)), or on events (an EventBridge pattern, JSON). `input` is the
    request, JSON; with `input_paths` (name to JSONPath in the event) it is a template in which <name> stands for what was found.
  EOT
  type = object({
    schedule      = optional(string)
    event_pattern = optional(string)
    input         = string
    input_paths   = optional(map(string))
  })
  default = null
  validation {
    condition     = var.trigger == null || try((var.trigger.schedule == null) != (var.trigger.event_pattern == null), false)
    error_message = "Either schedule or event_pattern."
  }
  validation {
    condition     = var.trigger == null || try(var.trigger.input_paths != null, false) || can(jsondecode(var.trigger.input).request.table)
    error_message = "input is JSON: {\"request\": {\"table\": ..., \"rows\": {...}}, \"options\": {...}}."
  }
}

variable "kms_key_arn" {
  description = "Key for bucket, queues and ledger, also of a bucket that was there; null leaves keys to AWS."
  type        = string
  default     = null
}

variable "deletion_protection" {
  description = "Refuse to delete the ledger."
  type        = bool
  default     = true
}

variable "log_retention_days" {
  description = "How long logs are kept, in days (one of CloudWatch's choices)."
  type        = number
  default     = 30
}

variable "alarm_actions" {
  description = "ARNs that alarms tell, such as an SNS topic."
  type        = list(string)
  default     = []
}

variable "extra_environment" {
  description = "Further environment variables of all functions, such as AWS_ENDPOINT_URL for an emulator."
  type        = map(string)
  default     = {}
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}
