# One image for server, nodes and login node of the test cluster: Debian 13, Slurm, all packages of
# Lattice. Nothing in it is secret, and nothing is enabled.
#
#   packer plugins install github.com/hashicorp/googlecompute        # from Packer 1.7 on
#   packer build -var project=PROJECT -var packages=DIR lattice-compute.pkr.hcl

variable "project" {
  type = string
}

variable "zone" {
  type    = string
  default = "europe-west4-a"
}

variable "packages" {
  type        = string
  description = "A folder with the deb packages of one release."
}

source "googlecompute" "debian" {
  project_id          = var.project
  zone                = var.zone
  source_image_family = "debian-13"
  image_name          = "lattice-compute-{{timestamp}}"
  image_family        = "lattice-compute"
  machine_type        = "e2-standard-4"
  ssh_username        = "packer"
}

build {
  sources = ["source.googlecompute.debian"]

  provisioner "shell" {
    inline = ["mkdir -p /tmp/lattice"]
  }

  provisioner "file" {
    source      = "${var.packages}/"
    destination = "/tmp/lattice"
  }

  provisioner "file" {
    source      = "${path.root}/../startup/common.sh"
    destination = "/tmp/lattice/lattice-cloud.sh"
  }

  provisioner "shell" {
    execute_command = "sudo env {{ .Vars }} bash -eux {{ .Path }}"
    environment_vars = ["DEBIAN_FRONTEND=noninteractive"]
    inline = [
      "apt-get update",
      "apt-get install -y --no-install-recommends munge slurmctld slurmd slurmdbd slurmrestd slurm-client mariadb-server curl jq nftables ca-certificates",
      "dpkg -i /tmp/lattice/lattice*.deb",
      "install -m 644 /tmp/lattice/lattice-cloud.sh /usr/local/lib/lattice-cloud.sh",
      "systemctl disable munge slurmctld slurmd slurmdbd slurmrestd || true",
      "rm -rf /tmp/lattice /etc/munge/munge.key /etc/ssh/ssh_host_*",
    ]
  }
}
