"""Records of a watched job as text. Pure."""
