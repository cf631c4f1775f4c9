# Opens what docs/operate/ports.md lists, and what Slurm needs inside.

resource "google_compute_network" "cluster" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "cluster" {
  name                     = var.name
  network                  = google_compute_network.cluster.id
  ip_cidr_range            = "10.20.0.0/24"
  private_ip_google_access = true
}

resource "google_compute_firewall" "people" {
  name          = "${var.name}-people"
  network       = google_compute_network.cluster.id
  source_ranges = var.people
  target_tags   = ["${var.name}-server"]
  allow {
    protocol = "tcp"
    ports    = ["8080"]
  }
}

resource "google_compute_firewall" "login" {
  name          = "${var.name}-login"
  network       = google_compute_network.cluster.id
  source_ranges = var.people
  target_tags   = ["${var.name}-login"]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

# Nodes and login node dial the server: Lattice, slurmctld, slurmdbd.
resource "google_compute_firewall" "to_server" {
  name        = "${var.name}-to-server"
  network     = google_compute_network.cluster.id
  source_tags = ["${var.name}-node", "${var.name}-login"]
  target_tags = ["${var.name}-server"]
  allow {
    protocol = "tcp"
    ports    = ["8080", "50051", "50052", "50053", "6817", "6819"]
  }
}

# slurmctld dials slurmd, jobs dial each other and srun. Nothing of Lattice listens here.
resource "google_compute_firewall" "slurm" {
  name        = "${var.name}-slurm"
  network     = google_compute_network.cluster.id
  source_tags = ["${var.name}-server", "${var.name}-node", "${var.name}-login"]
  target_tags = ["${var.name}-node", "${var.name}-login"]
  allow {
    protocol = "tcp"
    ports    = ["6818", "60001-63000"]
  }
}
