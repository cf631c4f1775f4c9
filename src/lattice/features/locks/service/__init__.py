"""What the server does for the feature: the locks in the agreed state, and who may change them."""
