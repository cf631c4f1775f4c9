"""The lattice-server process: composition root, gRPC and REST, interceptors."""
