"""Claims: nodes that run the sensitive work of one person alone.

Data path    command ─► operations ─► ClaimService ─► audit log ─► etcd ─► port Reservations ─► gate
             ─► scontrol create|delete reservation. ClaimBook ─► everybody who asks whose a node is.
Bounds       A claim has 512 nodes and a reason of 200 characters; 200 claims are held at once.
When down    Without etcd nothing is claimed or released (503). Without the gate or slurmctld a
             claim or release that has begun is finished later by the loop `claims`.
Promises     AUDIT-1, OPS-4.
"""
