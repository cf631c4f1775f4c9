"""Runs: the training runs of an allocation, and the allocation of a run.

Data path    command ─► operations ─► wiring ─► service ─► access.output ─► foundation's
             TrainingRunFinder ─► port RunStore: the MLflow server that the configuration names.
             The command alone also reads MLflow's SQLite file, as its user.
Scope        Who may read the measurements of an allocation sees its runs. By a name only runs are
             shown whose allocation the caller may see.
Bounds       100 runs of an allocation; 10 allocations for a name. An answer of MLflow is waited
             for 5 s. Each question counts as one of the caller's metric queries.
When down    MLflow: no runs, and a source with the reason. Nothing else waits for it.
Promises     RUN-2, AUTH-7, AUTH-12.
"""
