"""Doctor: what works and what does not, of the whole service, with what to do.

Data path    operator ─► examiner ─┬─ engines: slurmctld, slurmdbd, slurmrestd, etcd, metric store,
                                   │  object store, identity provider, gate, other servers.
                                   ├─ what agents report over their links, and echoes of a few.
                                   └─ the process: certificates, disks, loops, open files.
             All in parallel ─► facts ─► checks (a pure module a group) ─► render.
Bounds       3 s a measurement, so a hanging engine costs 3 s. Callers at the same time share one
             examination. Probes write one key, one object and one sample, and remove the first
             two. Eight agents are asked for an echo.
When down    Each part is a check of its own: failed, or unknown with the reason. The others are
             measured. Unknown never becomes ok.
Promises     OPS-8.
"""
