"""Facts about a job's environment, one file for each kind, read on request.

Unlike the probes of metrics these do not run periodically. Each takes the roots of the kernel's
files, so tests can use captured trees. Each returns facts of `lattice.domain.jobfacts`. A text that
does not have the kernel's format is skipped or becomes None.
"""
