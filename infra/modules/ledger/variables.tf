variable "name" {
  description = "Name of the table."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts the table; null takes the account's key for DynamoDB."
  type        = string
  default     = null
}

variable "deletion_protection" {
  description = "Refuse to delete the table: it is the only record of which unit is done."
  type        = bool
  default     = true
}

variable "tags" {
  description = "Tags of the table."
  type        = map(string)
  default     = {}
}
