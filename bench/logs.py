"""All figures of logs: the pipeline, old ranges, following, and beside a job that floods.

    just bench logs [--rounds N]

Takes about an hour at seven rounds. Each part can be had alone: `logs-pipeline`,
`logs-history`, `logs-live`, `logs-beside`. Needs root; the lab is made for it and taken away again.
"""

from __future__ import annotations

import argparse
import sys

from bench import logs_beside, logs_history, logs_live, logs_pipeline
from bench.figures import Figure


def figures(rounds: int) -> list[Figure]:
    """Every part in turn; each figure is printed when it is known."""
    found = [*logs_pipeline.figures(rounds), *logs_history.figures(rounds)]
    for each in found:
        each.print()
    with logs_live.laboratory(None) as lab:
        found += logs_live.measure(lab, rounds)
        found += logs_beside.measure(lab, rounds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.logs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="7 for a result")
    found = figures(parser.parse_args().rounds)
    return 0 if all(each.ok is not False for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
