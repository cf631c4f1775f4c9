"""The audit log of a server: the writer, the archive, the reader, and the service for people."""
