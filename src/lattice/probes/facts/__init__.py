"""What a node can tell of a job's surroundings, one file each: read when somebody asks.

Unlike the probes of metrics these are not run in turn. Each takes the roots of the kernel's files,
so that captured trees test it, and gives facts of `lattice.domain.jobfacts`; what is not the
kernel's own writing is left out or None, and never a fact that looks well.
"""
