"""Tenants: top accounts of Slurm with limits, and what is in use of them.

Data path    sacctmgr ─ limits ─► port TenantAccounts ┐
             slurmctld ─ poll ─► live snapshot ───────┴► TenantService.
             create, update ─► sacctmgr, as the server's user ─► slurmdbd ─► slurmctld.
Bounds       Lattice stores nothing: Slurm has the limits and enforces them. A tenant admin reads
             the own tenant; another one and none are the same answer.
When down    Without slurmdbd the limits are not known, and the rest is shown as last read. Nothing
             is changed then (503).
Promises     OPS-5.
"""
