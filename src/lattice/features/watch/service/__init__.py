"""On the server: the streams of all nodes of a job, merged with its state in Slurm."""
