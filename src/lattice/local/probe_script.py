"""What the measuring step runs on each node, and how its text becomes readings.

The script needs a POSIX shell and nothing else, so it runs on nodes without Lattice. For each line
on its input it prints one sample: files of the kernel, as they are, each line behind a name. When
its input ends, because the caller went away, the step ends too.

It runs as the job's owner in the job's control group. So it reads the counters of the whole job,
and of processes those of the owner.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lattice.domain.kerneltext import figure, read_devices
from lattice.domain.metric import (
    Absence,
    Labels,
    MetricReading,
    NotMeasured,
    Provenance,
    Sample,
    labelled,
)
from lattice.features.top.service.rows import NO_GPUS
from lattice.probes.cgroup import (
    NO_GROUP,
    NO_LIMIT,
    NOT_REPORTED,
    UNLIMITED_BYTES,
    used_memory,
)
from lattice.probes.kernel_files import figures

SCRIPT = r"""
LC_ALL=C; export LC_ALL
has_gpus=$1
show() { [ -r "$2" ] && sed "s|^|$1 |" "$2" 2>/dev/null; }
folders() {
  sed -n 's|^[0-9]*:\([^:]*\):\(/.*\)/step_[^/]*.*$|\1 \2|p' /proc/self/cgroup
}
unified() {
  echo "group 2"
  show cpu "$1/cpu.stat"
  for each in "$1"/step_*/slurm/cpu.stat; do show daemon "$each"; done
  show memory "$1/memory.stat"
  show events "$1/memory.events"
  above=$1
  while [ "$above" != /sys/fs/cgroup ] && [ "${above#/sys/fs/cgroup}" != "$above" ]; do
    show limit "$above/memory.max"; above=${above%/*}
  done
}
separate() {
  at=/sys/fs/cgroup/$1$2
  [ -d "$at" ] || return
  case $1 in
    cpuacct) echo "group 1"; show usage "$at/cpuacct.usage";;
    memory) echo "group 1"; show memory "$at/memory.stat";;
  esac
}
groups() {
  folders | while IFS= read -r line; do
    path=${line#* }; names=${line%% *}
    if [ -z "$names" ]; then unified "/sys/fs/cgroup$path"; else
      for name in $(echo "$names" | tr , ' '); do separate "$name" "$path"; done
    fi
  done
}
processes() {
  folders | while IFS= read -r line; do
    path=${line#* }; names=${line%% *}
    if [ -z "$names" ]; then at=/sys/fs/cgroup$path; else at=/sys/fs/cgroup/${names%%,*}$path; fi
    find "$at" -name cgroup.procs -exec cat {} + 2>/dev/null
  done | sort -un | head -n 1500 | sed 's|.*|/proc/&/io|'
}
sample() {
  echo begin
  read -r up _ < /proc/uptime; echo "up $up"
  groups
  files=$(processes)
  [ -z "$files" ] || grep -Hs '^\(read\|write\)_bytes: ' $files | sed 's|^|io |'
  show net /proc/net/dev
  for each in /sys/class/net/*/device; do
    [ -e "$each" ] && { each=${each%/device}; echo "device ${each##*/}"; }
  done
  if [ "$has_gpus" != 0 ]; then
    echo "visible ${CUDA_VISIBLE_DEVICES-}"
    if command -v nvidia-smi >/dev/null 2>&1; then
      timeout 5 nvidia-smi --query-gpu=uuid,utilization.gpu,memory.used,memory.total,power.draw,\
temperature.gpu --format=csv,noheader,nounits </dev/null 2>&1 | head -n 64 | sed 's|^|gpu |'
    fi
  fi
  echo end
}
echo "node ${SLURMD_NODENAME:-$(uname -n)}"
while read -r _; do sample; done
"""

_MEBIBYTE = 2**20
_NO_LATENCY = "the latency of reads and writes needs the node's agent"
_NO_PROCESSES = "no process of the job could be read"
_MANY_PROCESSES = "the job has more processes on the node than the step reads"
_MOST_PROCESSES = 2000
"""Two counts each; the script reads half as many processes more than that."""
_NO_KILLS = "cgroup v1 counts kills in folders that come and go; that needs the node's agent"
_NO_SMI = "nvidia-smi is not on the node; without a server only NVIDIA cards are measured"
_OTHERS_CARDS = "the node shows more cards than the job has, and which are the job's is not certain"
_GPU_FIELDS = (
    ("gpu_utilization_percent", 1.0),
    ("gpu_memory_used_bytes", _MEBIBYTE),
    ("gpu_memory_total_bytes", _MEBIBYTE),
    ("gpu_power_watts", 1.0),
    ("gpu_temperature_celsius", 1.0),
)
"""In the order of the question to nvidia-smi, behind the card's UUID."""
_NO_OCCUPANCY = "occupancy needs the node's agent and a DCGM exporter"


@dataclass(slots=True)
class ProbeSample:
    """One sample of one node, as printed."""

    up_s: float = 0.0
    """The node's time, as seconds since its start."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """What was printed behind each name."""

    def text(self, name: str) -> str | None:
        """The lines of a name as one text; None if it was not printed."""
        found = self.lines.get(name)
        return None if found is None else "\n".join(found)

    def add(self, line: str) -> None:
        """Take a printed line; one that makes no sense is skipped."""
        name, _, rest = line.partition(" ")
        if name == "up":
            whole, _, part = rest.partition(".")
            seconds, hundredths = figure(whole), figure(part or "0")
            if seconds is not None and hundredths is not None:
                self.up_s = seconds + hundredths / 10 ** len(part or "0")
        elif len(self.lines) < _MOST_NAMES:
            self.lines.setdefault(name, []).append(rest)


_MOST_NAMES = 32


def readings_of(
    before: ProbeSample | None, now: ProbeSample, time: float, *, gpus: int | None
) -> tuple[MetricReading, ...]:
    """What a sample tells of the job at `time`. `gpus` is how many the job has in all."""
    found: list[MetricReading] = [
        *_processor(now, time),
        *_memory(now, time),
        *_storage(before, now, time),
        Absence("io_latency_seconds_bucket", _NO_LATENCY),
        *_network(now, time),
        *_cards(now, time, gpus),
    ]
    return tuple(
        replace(each, source=Provenance.IN_JOB_PROBE) if isinstance(each, Sample) else each
        for each in found
    )


def _reading(metric: str, value: float, time: float, labels: Labels = ()) -> MetricReading:
    try:
        return Sample(metric, value, time, Provenance.IN_JOB_PROBE, labels)
    except NotMeasured as error:
        return Absence(metric, f"the node told what can't be: {error}", labels=labels)


def _is_unified(sample: ProbeSample) -> bool:
    return "2" in sample.lines.get("group", ())


def _processor(sample: ProbeSample, time: float) -> list[MetricReading]:
    if _is_unified(sample):
        used = figures(sample.text("cpu")).get("usage_usec")
        daemons = (
            figure(each.partition(" ")[2])
            for each in sample.lines.get("daemon", ())
            if each.startswith("usage_usec ")
        )
        seconds = None if used is None else max(0, used - sum(filter(None, daemons))) / 1e6
    else:
        used = figure(sample.text("usage"))
        seconds = None if used is None else used / 1e9
    metric = "cpu_seconds_total"
    reason = NOT_REPORTED if "group" in sample.lines else NO_GROUP.format("cpuacct")
    return [Absence(metric, reason) if seconds is None else _reading(metric, seconds, time)]


def _memory(sample: ProbeSample, time: float) -> list[MetricReading]:
    text = sample.text("memory")
    if text is None:
        reason = NO_GROUP.format("memory")
        names = ("memory_used_bytes", "memory_cache_bytes", "memory_limit_bytes")
        kills = Absence("memory_oom_kills_total", reason)
        return [*(Absence(each, reason) for each in names), kills]
    stat, unified = figures(text), _is_unified(sample)
    found = list(used_memory(stat, v2=unified, now=time))
    if unified:
        limits = [figure(each) for each in sample.lines.get("limit", ())]
        limit = min((each for each in limits if each is not None), default=None)
        kills_count = figures(sample.text("events")).get("oom_kill")
        reason = NOT_REPORTED
    else:
        limit = stat.get("hierarchical_memory_limit")
        kills_count, reason = None, _NO_KILLS
    if limit is None or limit >= UNLIMITED_BYTES:
        found.append(Absence("memory_limit_bytes", NO_LIMIT))
    else:
        found.append(_reading("memory_limit_bytes", limit, time))
    metric = "memory_oom_kills_total"
    found.append(
        Absence(metric, reason) if kills_count is None else _reading(metric, kills_count, time)
    )
    return found


def _storage(before: ProbeSample | None, now: ProbeSample, time: float) -> list[MetricReading]:
    """Bytes read and written by processes that run, those of before included.

    What a process did between its last sample and its end is in no figure.
    """
    counts = _io(now)
    reason = _NO_PROCESSES if len(counts) < _MOST_PROCESSES else _MANY_PROCESSES
    if len(counts) >= _MOST_PROCESSES:
        counts = {}
    found: list[MetricReading] = []
    for direction in ("read", "write"):
        metric = f"io_{direction}_bytes_total"
        mine = {pid: value for (pid, of), value in counts.items() if of == direction}
        if not mine:
            found.append(Absence(metric, reason))
            continue
        earlier = _io(before) if before is not None else {}
        gone = sum(
            value for (pid, of), value in earlier.items() if of == direction and pid not in mine
        )
        found.append(_reading(metric, gone + sum(mine.values()), time))
    return found


def _io(sample: ProbeSample) -> dict[tuple[str, str], int]:
    """Parses `/proc/42/io:read_bytes: 4096`."""
    found = {}
    for line in sample.lines.get("io", ()):
        path, _, rest = line.partition(":")
        name, _, value = rest.partition(": ")
        count = figure(value)
        if count is not None and name in {"read_bytes", "write_bytes"}:
            found[path, name.removesuffix("_bytes")] = count
    return found


def _network(sample: ProbeSample, time: float) -> list[MetricReading]:
    names = ("network_rx_bytes_total", "network_tx_bytes_total")
    devices = read_devices(sample.text("net"))
    if devices is None:
        return [Absence(each, NOT_REPORTED) for each in names]
    outside = {name for name in devices if name != "lo"}
    counting = outside & set(sample.lines.get("device", ())) or outside
    if not counting:
        return [Absence(each, "the node has no network") for each in names]
    totals = [sum(devices[name][at] for name in counting) for at in (0, 1)]
    labels = labelled(scope="node")
    return [
        _reading(metric, total, time, labels) for metric, total in zip(names, totals, strict=True)
    ]


def _cards(sample: ProbeSample, time: float, gpus: int | None) -> list[MetricReading]:
    metrics = tuple(metric for metric, _ in _GPU_FIELDS)
    if gpus == 0:
        return _without_cards(metrics, NO_GPUS)
    printed = sample.lines.get("gpu")
    if printed is None:
        return _without_cards(metrics, _NO_SMI)
    rows = [[each.strip() for each in row] for row in csv.reader(printed)]
    listed = [row for row in rows if len(row) == len(metrics) + 1 and row[0].startswith("GPU-")]
    if not listed:
        return _without_cards(metrics, "nvidia-smi measured nothing", " ".join(printed)[:200])
    cards = _own(listed, sample.lines.get("visible", [""])[0])
    if not cards:
        return _without_cards(metrics, _OTHERS_CARDS)
    found: list[MetricReading] = [Absence("gpu_sm_occupancy_percent", _NO_OCCUPANCY)]
    for uuid, *values in cards:
        labels = labelled(gpu_uuid=uuid)
        for (metric, factor), value in zip(_GPU_FIELDS, values, strict=True):
            try:
                found.append(_reading(metric, float(value) * factor, time, labels))
            except ValueError:
                found.append(Absence(metric, f"nvidia-smi told {value[:40]}", labels=labels))
    return found


def _without_cards(
    metrics: Iterable[str], reason: str, last_error: str = ""
) -> list[MetricReading]:
    names = (*metrics, "gpu_sm_occupancy_percent")
    return [Absence(each, reason, last_error) for each in names]


def _own(cards: Sequence[Sequence[str]], visible: str) -> list[Sequence[str]]:
    """The job's cards; none if the node shows others, too, and does not tell them apart."""
    wanted = [each for each in visible.split(",") if each]
    by_uuid: Mapping[str, Sequence[str]] = {each[0]: each for each in cards}
    if wanted and all(each in by_uuid for each in wanted):
        return [by_uuid[each] for each in wanted]
    return list(cards) if len(wanted) == len(cards) else []
