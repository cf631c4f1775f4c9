"""Sharing: an owner lets others read a job's output, and sees who has read it.

Data path    command ─► operations ─► wiring ─► SharingService ─► SharedAllocations ─► StateStore.
             a read of another's output ─► access.output ─► service.reads ─► StateStore, then
             the answer. The owner's card and `lattice share ID` show the records.
Bounds       20 000 shares in all, 500 per owner, 100 per allocation, and at most 30 days each
             unless configured. 20 000 read records of at most 24 hours each, kept 30 days; the
             oldest are removed first. About 10 MB of state in all, 60 MB at worst.
When down    Without the state store nothing is shared and nobody reads another's output (503).
             Owners can still read. An unknown id is 503 too: it might have been shared. An open
             read by a share ends within 40 s after the store stops answering.
Promises     AUTH-7, AUTH-12.
"""
