"""The replica's side: its lease, the links it holds, and streams to any node."""
