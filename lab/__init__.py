"""The lab: the whole real system on one Debian machine, as typed handles on real processes.

Slurm with its database and REST daemon, compute nodes, etcd, a metric store, an object store and
an identity provider, all the packaged programs and none of them imitated. Tests drive it through
`lab.laboratory.Lab`, a person through `python -m lab`.

It is not part of what a site installs, and it is not hardened: passwords and keys are fixed or
made on the spot, and everything stays inside the lab's own network namespaces.
"""
