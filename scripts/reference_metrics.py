"""Writes docs/reference/metrics.md: every series of server and agent, with the HELP of its page.

`just generate` and a test call it. The server's come from its catalogue, the agent's from the page
of an agent that has measured everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lattice.domain.metric import CATALOGUE
from lattice.foundation.series import Series
from lattice.foundation.server_series import GROUPS
from scripts.golden_metrics import agent_text

TARGET = Path(__file__).resolve().parents[1] / "docs/reference/metrics.md"
_HEAD = """\
# Metrics

<!-- Written by scripts/reference_metrics.py from the programs themselves. Don't edit. -->

Every series of `lattice-server` and `lattice-agent`, in Prometheus' text format. How to scrape
them, a dashboard and alerts: [monitoring](../operate/monitoring.md).

A series whose source is away is absent. It is never 0 or old for that reason.

## The server

`GET /metrics`, for the roles Operator and SystemAdmin, and without sign-in at
`api.metrics_listen`.

"""
_AGENT = """\
## The agent

On the node, at [`metrics.listen`](../operate/telemetry.md). Every series has the label `node`.

### The agent itself

"""
_JOBS = """\
### Jobs on the node

By `alloc` (the job id) and `source`. What the metric store has of them comes from the agents
directly, with the owner's labels: `alloc`, `attempt`, `node`, `user`, `project`, `tenant`,
`vcluster`, `source`.

"""
_HELP = re.compile(r"# HELP (\S+) (.*)\n# TYPE \S+ (\w+)\n(.*)")
_LABEL = re.compile(r'(\w+)="')
_OF_EVERY = frozenset({"node", "alloc", "source"})


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    parts += [
        f"### {each.title}\n\n{_folded(each.text)}\n\n{_table(each.series)}\n" for each in GROUPS
    ]
    jobs = {each.series.removesuffix("_bucket") for each in CATALOGUE.values()}
    found = _of_page(agent_text())
    parts += [_AGENT, _table(each for each in found if each.name not in jobs), "\n"]
    parts += [_JOBS, _table(each for each in found if each.name in jobs)]
    return "".join(parts)


def _of_page(text: str) -> list[Series]:
    found = []
    for name, help_text, kind, sample in _HELP.findall(text):
        labels = tuple(each for each in _LABEL.findall(sample) if each not in _OF_EVERY)
        found.append(Series(name, kind, help_text, labels))
    return found


def _table(series: Iterable[Series]) -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} "
        f"| {each.help_text} |\n"
        for each in series
    ]
    return "".join(["| name | kind | labels | what |\n|---|---|---|---|\n", *rows])


def _folded(text: str) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= 100:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(page())
