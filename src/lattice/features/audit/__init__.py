"""The audit log: who did what, in a chain that shows every change.

Data path    any feature ─ act ─► port AuditTrail: `require` before the act, or `note`.
             AuditLog: one writer, batches ─► AuditChain: link, seal, commit ─► StateStore.
             Slurm ─► AllocationRuns: runs of sensitive allocations ─► AuditLog.
             older batches ─► Archiver ─► segments in the ObjectStore; head ─► anchor outside.
             command ─► operations ─► AuditService ─► AuditReader: archive and state store.
Bounds       2 000 to 6 000 entries in the state store, 64 MiB at most while the archive is away.
             5 000 ordinary events wait in a server; what exceeds them is recorded as a gap.
When down    Without the state store a required act is refused (503 `SensitiveAuditRequired`), and
             ordinary events wait. Without the archive entries stay in the state store; older ones
             can't be read. A damaged log takes no more entries until it is restored.
Promises     AUDIT-2, AUDIT-3.
"""
