"""A site's scraper reads the servers without a token, and what it reads is what Slurm says."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest

from lab.addresses import SERVER_METRICS_PORT
from lab.laboratory import Lab
from lab.server import Server
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_EXPIRY = "lattice_certificate_expiry_timestamp_seconds"
_ENDED = "lattice_jobs_ended_total"
_USERS = "lattice_user_jobs_ended_total"


def scraped(lab: Lab, server: Server, path: str = "/metrics", *more: str) -> str:
    url = f"http://{server.address}:{SERVER_METRICS_PORT}{path}"
    return str(lab.ctl(["curl", "-sS", *more, url]).stdout)


def by(text: str, series: str, *labels: str) -> dict[str, float]:
    """The values of a series, summed by some of its labels."""
    found: Counter[str] = Counter()
    for name, inner, value in _SAMPLE.findall(text):
        if name == series:
            known = dict(_LABEL.findall(inner))
            found[" ".join(known[each] for each in labels)] += float(value)
    return {key: value for key, value in found.items() if value}


def squeue(lab: Lab) -> dict[str, float]:
    states = lab.ctl(["squeue", "-h", "-a", "-o", "%T"]).stdout.lower().split()
    return {state: float(count) for state, count in Counter(states).items()}


@pytest.mark.story
@pytest.mark.spec("OPS-8")
def test_a_scraper_reads_what_squeue_says(quiet_lab: Lab) -> None:
    lab = quiet_lab
    first, second = lab.servers
    # The count of ends begins with the first server.
    before = eventually(
        lambda: scraped(lab, first), lambda text: f"\n{_ENDED}{{" in text, patience_s=90
    )
    lab.sbatch("alice", "-J", "secret-name", wrap="sleep 300")
    lab.sbatch("bob", "-A", "genomics", wrap="sleep 300")
    lab.sbatch("alice", "--hold", wrap="sleep 300")
    failing = lab.sbatch("alice", wrap="exit 3")
    lab.wait_job_state(failing, "FAILED")

    text = eventually(
        lambda: scraped(lab, first),
        lambda text: by(text, "lattice_jobs", "state") == squeue(lab) != {},
        patience_s=60,
    )
    clean = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert clean.stdout + clean.stderr == ""
    assert by(text, "lattice_jobs_pending", "reason") == {"held": 1}
    assert by(text, "lattice_account_jobs", "account") == {"research": 2, "genomics": 1}
    assert "secret-name" not in text
    nodes = set(lab.ctl(["sinfo", "-h", "-N", "-o", "%N"]).stdout.split())
    assert sum(by(text, "lattice_nodes", "state").values()) == len(nodes)
    for engine in ("slurmctld", "slurmdbd", "state", "metric_store", "object_store"):
        assert by(text, "lattice_engine_up", "engine")[engine] == 1
    assert by(text, "lattice_etcd_members", "state") == {"ok": 3}
    assert by(text, "lattice_grpc_request_seconds_count", "code")["OK"] > 0

    wanted = by(before, _ENDED, "outcome").get("failed", 0) + 1
    for server in (first, second):
        text = eventually(
            lambda server=server: scraped(lab, server),  # type: ignore[misc]
            lambda text: by(text, _ENDED, "outcome").get("failed") == wanted,
            patience_s=60,
        )
        assert "alice research failed" in by(text, _USERS, "user", "project", "outcome")

    # Agents may have been linked after the servers had last read their certificates.
    eventually(
        lambda: {*by(scraped(lab, first), _EXPIRY, "certificate")},
        {"people", "authority", "agents"}.__eq__,
        patience_s=60,
    )
    status = ("-o", "/dev/null", "-w", "%{http_code}")
    assert scraped(lab, first, "/v1/allocations", *status) == "404"
    assert scraped(lab, first, "/metrics", "-X", "POST", *status) == "405"
