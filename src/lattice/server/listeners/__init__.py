"""The listeners for people and services: REST and gRPC, their bounds, TLS and the gatekeeper."""
