"""Converts requests to nodes and their answers between dataclasses and protobuf."""
