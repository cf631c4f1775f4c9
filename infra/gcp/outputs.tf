output "server" {
  description = "Where people reach Lattice."
  value       = "https://${google_compute_instance.server.network_interface[0].access_config[0].nat_ip}:8080"
}

output "login" {
  description = "The login node: gcloud compute ssh."
  value       = google_compute_instance.login.name
}
