variable "project" {
  description = "The project of the test cluster."
  type        = string
}

variable "region" {
  type    = string
  default = "europe-west4"
}

variable "zone" {
  type    = string
  default = "europe-west4-a"
}

variable "name" {
  description = "The cluster's name; begins the name of everything."
  type        = string
  default     = "lattice-try"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "A name has 2 to 21 small letters, digits and dashes."
  }
}

variable "nodes" {
  description = "How many compute nodes."
  type        = number
  default     = 2
  validation {
    condition     = var.nodes >= 1 && var.nodes <= 64
    error_message = "From 1 to 64 nodes."
  }
}

variable "image" {
  description = "The image that packer/lattice-compute.pkr.hcl made, with all packages in it."
  type        = string
}

variable "server_machine" {
  type    = string
  default = "e2-standard-4"
}

variable "node_machine" {
  description = "Its processors and memory go into slurm.conf by node_cpus and node_memory_mb."
  type        = string
  default     = "e2-standard-4"
}

variable "node_cpus" {
  type    = number
  default = 4
}

variable "node_memory_mb" {
  description = "A little less than the machine has."
  type        = number
  default     = 15000
}

variable "people" {
  description = "From where people may reach port 8080 of the server and SSH of the login node."
  type        = list(string)
  validation {
    condition     = !contains(var.people, "0.0.0.0/0")
    error_message = "Name your own networks: a test cluster is not for everybody."
  }
}

variable "munge_key_secret" {
  description = "Name of a secret in Secret Manager whose newest version is the MUNGE key. You add the version; Terraform never reads it."
  type        = string
}

variable "join_key_secret" {
  description = "Name of a secret for the join key. The server adds the version."
  type        = string
}

variable "authority_secret" {
  description = "Name of a secret for the authority of the server's certificate. The server adds the version; login nodes trust that one alone."
  type        = string
}
