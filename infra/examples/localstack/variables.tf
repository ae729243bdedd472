variable "endpoint" {
  description = "Address of the emulator, by number: names of buckets are put before a host name."
  type        = string
  default     = "http://127.0.0.1:4566"
}

variable "functions_endpoint" {
  description = "Address by which the functions reach the emulator, if it is another."
  type        = string
  default     = null
}

variable "region" {
  description = "Region that the emulator pretends to be."
  type        = string
  default     = "us-east-1"
}

variable "access_key" {
  description = "Access key; the emulator takes any, unless it enforces IAM."
  type        = string
  default     = "test"
}

variable "secret_key" {
  description = "Secret of the access key."
  type        = string
  default     = "test"
}

variable "name" {
  description = "Name of the lake."
  type        = string
  default     = "timelake"
}

variable "zips" {
  description = "Folder of the functions' executables: <function>/bootstrap.zip, built for this machine."
  type        = string
  default     = "../../../target/lambda"
}

variable "architecture" {
  description = "That of this machine: x86_64 or arm64."
  type        = string
  default     = "x86_64"
}

variable "databases" {
  description = "Glue databases whose tables may be loaded."
  type        = set(string)
  default     = ["iot"]
}

variable "sources" {
  description = "ARNs of the buckets (or of prefixes in them) whose files may be loaded."
  type        = list(string)
  default     = ["arn:aws:s3:::exports"]
}

variable "functions" {
  description = "As in the module; short calls keep queues quick to retry."
  type        = any
  default     = {}
}

variable "concurrency" {
  description = "As in the module, for a machine with few cores."
  type        = any
  default     = { work = 4 }
}

variable "sweep_minutes" {
  description = "How often the sweeper looks."
  type        = number
  default     = 5
}
