"""On the server: what all nodes of a job tell, merged with what Slurm says of it."""
