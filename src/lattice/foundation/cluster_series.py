"""Series of the cluster and of what a server stands on: every replica shows the same facts."""

from __future__ import annotations

from lattice.foundation.series import SeriesGroup, counter, gauge

_ENGINES = SeriesGroup(
    "Engines",
    "`engine` is `slurmctld`, `slurmdbd`, `state`, `metric_store` or `object_store`. An engine "
    "that is not configured has no series. Health is described under "
    "[errors and health](rest.md).",
    (
        gauge(
            "lattice_engine_up",
            "1 while the newest answer of this engine is current, 0 while it is not or there was "
            "none yet. Absent if it is not configured.",
            "engine",
        ),
        gauge(
            "lattice_engine_answer_age_seconds",
            "Age of the newest answer of this engine to this server. Absent before the first one.",
            "engine",
        ),
        gauge(
            "lattice_etcd_members",
            "Members of etcd by whether they answered this server (state: ok, away), asked every "
            "15 s. Absent without etcd.",
            "state",
        ),
    ),
)

_CERTIFICATES = SeriesGroup(
    "Certificates",
    "Read every half a minute. See [agents](../operate/agents.md).",
    (
        gauge(
            "lattice_certificate_expiry_timestamp_seconds",
            "When a certificate expires, in seconds since 1970: people is that of the listeners "
            "for people, authority the cluster's own, agents the soonest of linked agents. Absent "
            "if there is none or it can't be read.",
            "certificate",
        ),
        gauge(
            "lattice_agents_refused",
            "Nodes whose certificate is refused (why: revoked, quarantine). Absent while the "
            "agreed state does not answer.",
            "why",
        ),
    ),
)

_AGENTS = SeriesGroup(
    "Agents of the cluster",
    "The same on every server, from the agreed state: take `max`, not `sum`. Absent while that "
    "does not answer. See [nodes](../operate/nodes.md).",
    (
        gauge("lattice_agents_linked", "Nodes whose agent is linked to a server."),
        gauge("lattice_agents_lost", "Nodes whose agent lost its link a moment ago."),
        gauge(
            "lattice_agents_degraded",
            "Nodes whose agent has no link for longer than node_agent.degraded_after_s.",
        ),
        gauge(
            "lattice_agents_down",
            "Nodes whose agent has no link for longer than node_agent.grace_period_s.",
        ),
        gauge(
            "lattice_agents_spool_bytes",
            "Output of jobs on the disks of linked agents that the object store does not have "
            "yet, by their last reports. Absent if no agent reports it.",
        ),
        gauge(
            "lattice_agents_spool_fullest_ratio",
            "Used share of the fullest spool of a linked agent, from 0 to 1. At 1 it keeps no new "
            "output.",
        ),
        gauge(
            "lattice_agents_clock_offset_seconds",
            "Largest distance of a linked node's clock from the servers', ahead or behind.",
        ),
    ),
)

_JOBS = SeriesGroup(
    "Jobs and nodes of the cluster",
    "The same on every server, from Slurm: take `max`, not `sum`. They are counted every 10 s. "
    "They are absent while slurmctld does not answer, and while Slurm hides records from the "
    "server (`PrivateData`). Accounts, users and projects are shown only with "
    "`api.metrics_names`. Every label has a bound; what exceeds it is counted as `other`. See "
    "[monitoring](../operate/monitoring.md).",
    (
        gauge(
            "lattice_jobs",
            "Unfinished jobs by state. A waiting array counts once, as in squeue without -r.",
            "state",
        ),
        gauge(
            "lattice_account_jobs",
            "Unfinished jobs by Slurm account and state; the 100 accounts with most jobs, the "
            "rest as other.",
            "account",
            "state",
        ),
        gauge(
            "lattice_jobs_pending",
            "Pending jobs by partition, as the job names it, and by class of Slurm's reason; the "
            "50 partitions with most of them, the rest as other.",
            "partition",
            "reason",
        ),
        gauge(
            "lattice_nodes",
            "Nodes by state, as in lattice nodes, and by the health of their GPUs as the linked "
            "agent reports it.",
            "state",
            "gpu_health",
        ),
        counter(
            "lattice_jobs_ended_total",
            "Jobs that ended, by final state. All servers share the count and each end is counted "
            "once, so take max over servers. It goes on over restarts. It lacks ends that "
            "slurmctld forgot (MinJobAge) while no server ran.",
            "outcome",
        ),
        counter(
            "lattice_user_jobs_ended_total",
            "The same by user and project; users beyond 1000 combinations as other.",
            "user",
            "project",
            "outcome",
        ),
    ),
)

CLUSTER_GROUPS = (_ENGINES, _CERTIFICATES, _AGENTS, _JOBS)
