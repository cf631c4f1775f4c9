"""On the server: the locks in the state store, and who may change them."""
