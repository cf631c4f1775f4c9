"""Timeline: what happened to an allocation, and what was measured, on one axis of time.

Data path    command ─► operations ─► wiring ─► service.timeline ─► access.output.
             ─► service.figures ─► stored run summary, or port MetricStore.
             ─► foundation's TrainingRunFinder ─► runs and their logged values.
             ─► port NodeSnapshots for the alerts that stand; records of sessions and of reads.
             The command alone adds MLflow's SQLite file, and files of spans by span_rows.
             ─► render.plain or render.page.
Scope        As for `lattice report`. Sessions and reads are for the owner alone.
Bounds       The newest 8 attempts, 4 runs with 6 metrics each, 200 points of each line. It counts
             as one of the caller's metric queries.
             Spans: 200 names, 200 stretches each; of the files see observe.span_files.reader.
When down    Each part is missing with its reason, and the rest is shown.
Promises     RUN-3, a part of RUN-2, SRC-1, AUTH-7, AUTH-12.
"""
