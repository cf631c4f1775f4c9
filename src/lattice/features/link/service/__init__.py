"""The replica's side: its own sign of life, the links it holds, and streams to any node."""
