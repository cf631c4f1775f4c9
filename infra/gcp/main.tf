# A test cluster: one server with Slurm's controller, N compute nodes, one login node.
# Terraform knows the names of three secrets and none of them, so none is in its state.

locals {
  server = "${var.name}-server"
  login  = "${var.name}-login"
  slurm_conf = templatefile("${path.module}/startup/slurm.conf.tftpl", {
    name      = var.name
    server    = local.server
    nodes     = "${var.name}-n[1-${var.nodes}]"
    cpus      = var.node_cpus
    memory_mb = var.node_memory_mb
  })
  metadata = {
    enable-oslogin         = "TRUE"
    block-project-ssh-keys = "TRUE"
    slurm-conf             = local.slurm_conf
    munge-key-secret       = var.munge_key_secret
    join-key-secret        = var.join_key_secret
    authority-secret       = var.authority_secret
    lattice-nodes          = "${var.name}-n[1-${var.nodes}]"
    lattice-server         = local.server
  }
}

resource "google_service_account" "server" {
  account_id   = "${var.name}-server"
  display_name = "Lattice's server of ${var.name}"
}

resource "google_service_account" "node" {
  account_id   = "${var.name}-node"
  display_name = "Nodes of ${var.name}"
}

# Everybody in the cluster reads the MUNGE key; the server writes the join key, nodes read it.
resource "google_secret_manager_secret_iam_member" "munge" {
  for_each = {
    server = google_service_account.server.email
    node   = google_service_account.node.email
  }
  secret_id = var.munge_key_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${each.value}"
}

resource "google_secret_manager_secret_iam_member" "join_write" {
  secret_id = var.join_key_secret
  role      = "roles/secretmanager.secretVersionAdder"
  member    = "serviceAccount:${google_service_account.server.email}"
}

resource "google_secret_manager_secret_iam_member" "join_read" {
  secret_id = var.join_key_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.node.email}"
}

# The authority of the server's certificate is public, and must come from the server alone.
resource "google_secret_manager_secret_iam_member" "authority_write" {
  secret_id = var.authority_secret
  role      = "roles/secretmanager.secretVersionAdder"
  member    = "serviceAccount:${google_service_account.server.email}"
}

resource "google_secret_manager_secret_iam_member" "authority_read" {
  secret_id = var.authority_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.node.email}"
}

resource "google_compute_instance" "server" {
  name         = local.server
  machine_type = var.server_machine
  tags         = ["${var.name}-server"]
  metadata     = merge(local.metadata, { startup-script = file("${path.module}/startup/server.sh") })
  boot_disk {
    initialize_params {
      image = var.image
      size  = 50
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.cluster.id
    access_config {}
  }
  service_account {
    email  = google_service_account.server.email
    scopes = ["cloud-platform"]
  }
  shielded_instance_config {
    enable_secure_boot = true
  }
}

resource "google_compute_instance" "node" {
  count        = var.nodes
  name         = "${var.name}-n${count.index + 1}"
  machine_type = var.node_machine
  tags         = ["${var.name}-node"]
  metadata     = merge(local.metadata, { startup-script = file("${path.module}/startup/node.sh") })
  boot_disk {
    initialize_params {
      image = var.image
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.cluster.id
  }
  service_account {
    email  = google_service_account.node.email
    scopes = ["cloud-platform"]
  }
}

resource "google_compute_instance" "login" {
  name         = local.login
  machine_type = "e2-small"
  tags         = ["${var.name}-login"]
  metadata     = merge(local.metadata, { startup-script = file("${path.module}/startup/login.sh") })
  boot_disk {
    initialize_params {
      image = var.image
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.cluster.id
    access_config {}
  }
  service_account {
    email  = google_service_account.node.email
    scopes = ["cloud-platform"]
  }
}
