"""Series of one server: its process, its calls, and what its parts do."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.foundation.cluster_series import CLUSTER_GROUPS
from lattice.foundation.series import Series, SeriesGroup, counter, gauge, histogram

_PROCESS = SeriesGroup(
    "Process",
    "Of the server process; its search workers are processes of their own. The names are those of "
    "all Prometheus clients. See [loops](../operate/loops.md).",
    (
        gauge("lattice_build_info", "Always 1; the versions are labels.", "version", "python"),
        counter("process_cpu_seconds_total", "Processor time of the server, user and system."),
        gauge("process_resident_memory_bytes", "Resident memory of the server."),
        gauge("process_virtual_memory_bytes", "Virtual memory of the server."),
        gauge("process_start_time_seconds", "When the server started, in seconds since 1970."),
        gauge("process_open_fds", "Open files and sockets of the server."),
        gauge("process_max_fds", "How many files and sockets it may have open."),
        counter(
            "lattice_loop_failures_total",
            "Failures of a background loop since the server started. Each is a defect.",
            "loop",
        ),
        gauge(
            "lattice_event_loop_longest_pause_seconds",
            "Longest turn of the event loop in the last one to two minutes. Nothing else is served "
            "during a turn.",
        ),
        counter("lattice_event_loop_busy_seconds_total", "Time that turns of the event loop took."),
        counter(
            "lattice_event_loop_turns_total",
            "Turns of the event loop. Absent on uvloop, where they can't be counted.",
        ),
    ),
)

_CALLS = SeriesGroup(
    "Calls",
    "See [limits](../operate/limits.md).",
    (
        counter(
            "lattice_calls_total",
            "Calls over REST and gRPC by rpc and outcome (admitted, refused, defect). A defect is "
            "an error of Lattice itself.",
            "rpc",
            "outcome",
        ),
        histogram(
            "lattice_http_request_seconds",
            "Time to answer a REST request, streams to their end, by rpc and HTTP status. An empty "
            "rpc is a path that does not exist.",
            "rpc",
            "status",
        ),
        histogram(
            "lattice_grpc_request_seconds",
            "Time to answer a gRPC call of people, agents or other servers, streams to their end, "
            "by rpc and gRPC code.",
            "rpc",
            "code",
        ),
        gauge("lattice_connections_open", "Open connections to api.rest_listen."),
        counter(
            "lattice_connections_refused_total",
            "Connections closed at once because there were too many (api.max_connections).",
        ),
        counter("lattice_limit_refusals_total", "Refusals by a limit, by its kind.", "kind"),
        counter(
            "lattice_limit_stood_in_total",
            "Questions of a rate limit judged by a stand-in because the server that owns the "
            "bucket did not answer.",
        ),
        counter(
            "lattice_limit_blind_sessions_total",
            "Sessions let in uncounted because the agreed state did not answer.",
        ),
        gauge("lattice_sessions_open", "Sessions that this server holds slots for."),
        gauge("lattice_attach_connections", "Terminals whose frames this server passes on."),
    ),
)

_COUNTS = {
    "polls_total": "Polls of slurmctld for {}.",
    "polls_unchanged_total": "Polls for {} that slurmctld answered with nothing changed.",
    "polls_failed_total": "Polls for {} that failed.",
    "poll_seconds_total": "Time spent in polls for {}.",
    "records_decoded_total": "Records of {} decoded because they had changed.",
    "records_reused_total": "Records of {} left alone because they had not changed.",
    "decode_dropped_total": "Records of {} that could not be read at all, and are left out.",
}

_SLURM = SeriesGroup(
    "Reading of Slurm",
    "See [Slurm](../operate/slurm.md).",
    (
        *(
            counter(f"lattice_slurm_{what}_{name}", text.format(what))
            for what in ("jobs", "nodes")
            for name, text in _COUNTS.items()
        ),
        counter("lattice_slurm_past_questions_total", "Questions put to slurmdbd."),
    ),
)

_LINKS = SeriesGroup(
    "Links to agents",
    "Of this server; take `sum` over servers. See [links](../operate/links.md).",
    (
        gauge("lattice_links_held", "Agents linked to this server."),
        gauge("lattice_links_standby", "Spare connections that agents of other servers keep here."),
        gauge(
            "lattice_links_clock_off",
            "Agents linked to this server whose node's clock is more than 2 s off.",
        ),
        gauge("lattice_lanes_open", "Lanes of agents, spare ones included."),
        counter("lattice_lanes_refused_total", "Lanes refused because there were too many."),
        counter("lattice_presence_changes_total", "Changes of nodes' records that it has written."),
        counter(
            "lattice_presence_races_lost_total",
            "Changes of nodes' records that another server had written first.",
        ),
        counter("lattice_failed_nodes_drained_total", "Failed nodes that it has drained."),
        counter("lattice_failed_nodes_failed_total", "Drains of failed nodes that did not work."),
        counter(
            "lattice_failed_nodes_held_back_total",
            "Failed nodes left in service because enough were drained within the hour.",
        ),
    ),
)

_CLAIMS = SeriesGroup(
    "Claims of nodes",
    "What the loop that compares claims with Slurm's reservations did on this server. See "
    "[claims](../operate/claims.md#after-a-crash).",
    (
        counter("lattice_claims_finished_total", "Claims and releases that a server had left."),
        counter("lattice_claims_reserved_again_total", "Reservations that were made again."),
        counter("lattice_claims_strays_removed_total", "Reservations without a claim, removed."),
        gauge(
            "lattice_claims_unreserved",
            "Claims whose reservation is missing or open to others, and can't be put right.",
        ),
    ),
)

_BACKUPS = SeriesGroup(
    "Backups of the agreed state",
    "Only where `backup.every_h` schedules them. See [backup](../operate/backup.md).",
    (
        counter("lattice_backups_made_total", "Scheduled backups that this server made."),
        counter("lattice_backups_failed_total", "Tries of a scheduled backup that failed."),
    ),
)

_AUDIT = SeriesGroup(
    "Audit log",
    "See [the audit log](../operate/audit.md).",
    (
        counter("lattice_audit_entries_total", "Entries that this server has committed."),
        counter(
            "lattice_audit_refused_total",
            "Sensitive acts that were refused because their entry could not be committed.",
        ),
        counter(
            "lattice_audit_lost_total",
            "Events that were lost because too many waited. The log records how many.",
        ),
        counter(
            "lattice_audit_rollbacks_total",
            "Times at which the log in the agreed state was older than this server had seen it.",
        ),
        counter("lattice_audit_segments_total", "Segments that this server has archived."),
        gauge("lattice_audit_queued", "Events that wait to be committed."),
    ),
)

_SENSITIVE = SeriesGroup(
    "Sensitive work",
    "Of servers with keys of the site. See [sealing](../operate/sealing.md).",
    (
        counter("lattice_data_keys_made_total", "Data keys that this server has made."),
        counter("lattice_data_keys_unwrapped_total", "Data keys that the key service unwrapped."),
        counter(
            "lattice_data_keys_wrapped_again_total",
            "Data keys that were wrapped again after a change of the site's key.",
        ),
        counter(
            "lattice_data_keys_destroyed_total",
            "Data keys that were destroyed at the end of their retention.",
        ),
        counter(
            "lattice_data_keys_failures_total",
            "Failures to wrap a data key again. It stays as it was.",
        ),
        counter(
            "lattice_recordings_closed_total",
            "Recordings of terminals that this server closed and named in the audit log.",
        ),
        counter(
            "lattice_recordings_failures_total",
            "Failures to close a recording. It is tried again.",
        ),
        counter(
            "lattice_recordings_removed_total",
            "Recordings of terminals that this server removed after their retention.",
        ),
        gauge("lattice_data_keys_in_memory", "Data keys that this server has in memory."),
    ),
)

_TELEMETRY = SeriesGroup(
    "Samples",
    "See [the metric store](../operate/telemetry.md).",
    (
        counter("lattice_telemetry_samples_stored_total", "Samples that the metric store took."),
        counter(
            "lattice_telemetry_samples_refused_total",
            "Samples that were not passed on, or that the metric store refused for good.",
        ),
        counter(
            "lattice_telemetry_samples_lost_by_agents_total",
            "Samples that agents had no room for, by their own count.",
        ),
        counter("lattice_telemetry_writes_total", "Writes to the metric store."),
        counter("lattice_telemetry_write_failures_total", "Writes that failed."),
        counter("lattice_telemetry_write_seconds_total", "Time spent in writes."),
        gauge("lattice_telemetry_samples_waiting", "Samples that wait to be written."),
        gauge(
            "lattice_telemetry_allocations_in_debug",
            "Jobs switched to debug telemetry in the whole cluster; the same on every server.",
        ),
        gauge(
            "lattice_telemetry_nodes_followed",
            "Nodes whose measurements somebody follows on this server.",
        ),
        counter(
            "lattice_telemetry_news_dropped_total",
            "Measurements that followers were too slow for.",
        ),
    ),
)

_STORED = SeriesGroup(
    "Stored logs and summaries",
    "See [logs](../operate/logs.md) and [reports](../guide/report.md#years-later).",
    (
        counter("lattice_logs_metadata_written_total", "Attempts whose metadata.json it wrote."),
        counter(
            "lattice_logs_retention_sweeps_total",
            "Times it went through the stored logs for their retention.",
        ),
        counter(
            "lattice_logs_retention_attempts_removed_total",
            "Attempts whose logs it removed because their retention was over.",
        ),
        counter("lattice_logs_retention_objects_removed_total", "Objects it removed for that."),
        counter("lattice_logs_retention_bytes_removed_total", "Their size, as stored."),
        counter("lattice_run_summaries_written_total", "Summaries of runs that it has stored."),
        counter(
            "lattice_run_summaries_elsewhere_total",
            "Summaries of runs that another server had stored first.",
        ),
        counter(
            "lattice_run_summaries_silent_total",
            "Summaries put off because the metric store did not answer.",
        ),
        gauge("lattice_run_summaries_waiting", "Ended attempts without a summary yet."),
        counter("lattice_run_events_written_total", "Documents with the events of runs stored."),
    ),
)

GROUPS: tuple[SeriesGroup, ...] = (
    _PROCESS, _CALLS, *CLUSTER_GROUPS, _SLURM, _LINKS, _AUDIT, _SENSITIVE, _CLAIMS, _BACKUPS,
    _TELEMETRY, _STORED,
)  # fmt: skip


def _all() -> Iterator[Series]:
    for group in GROUPS:
        yield from group.series


SERIES: dict[str, Series] = {each.name: each for each in _all()}
"""Every series that a server may show."""
