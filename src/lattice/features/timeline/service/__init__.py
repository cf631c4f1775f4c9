"""The service of the feature."""
