"""Timeline: what happened to an allocation, and what was measured, on one axis of time.

Data path    command ─► operations ─► wiring ─► service.timeline ─► access.output.
             ─► service.figures ─► stored run summary, or port MetricStore.
             ─► foundation's TrainingRunFinder ─► runs and their logged values.
             ─► service.run_events ─► stored document, or port NodeSnapshots: alerts, what the job
             reported, and switches of the mode. Records of sessions and of reads.
             ─► port LogVolumes: how much was written when, and what is lost.
             RunEventLoop: ended attempt ─► its nodes ─► one document beside its logs.
             The command alone adds MLflow's SQLite file, and files of spans by span_rows.
             ─► render.plain or render.page.
Scope        As for `lattice report`. Sessions and reads are for the owner alone.
Bounds       The newest 8 attempts, 4 runs with 6 metrics each, 200 points of each line. It counts
             as one of the caller's metric queries.
             Events: 1000 stored and 500 shown of an attempt, and half of the room is for alerts.
             Spans: 200 names, 200 stretches each; of the files see observe.span_files.reader.
When down    Each part is missing with its reason, and the rest is shown. An agent that is started
             again has lost the events of running jobs; they are missing with that reason. A server
             that dies loses none: nodes hold those of ended jobs, and another server stores them.
Promises     RUN-3, a part of RUN-2, SRC-1, AUTH-7, AUTH-12.
"""
