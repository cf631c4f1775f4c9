"""Which training run wrote the checkpoint that another one loaded. Pure.

Runs say both themselves, by the SHA-256 of the file in two tags. Nobody checks that. So a chain is
bounded, a loop ends it, and what contradicts the time of a run is no link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lattice.domain.training_run import LOADED_TAG, SAVED_TAG, TrainingRun

MOST_LINEAGE_RUNS = 30
MOST_QUESTIONS = 60
SHORT = 12
"""Digits of a checksum that people are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLink:
    """One run loaded what another one wrote. Both by their ids."""

    checksum: str
    saved_by: str
    loaded_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLineage:
    """Runs that are connected by checkpoints, the oldest first."""

    runs: tuple[TrainingRun, ...] = ()
    links: tuple[CheckpointLink, ...] = ()
    notes: tuple[str, ...] = ()
    """What is missing or can't be true, for people."""


@dataclass(frozen=True, slots=True)
class CheckpointQuestion:
    """Asks which runs have this checksum in this tag."""

    tag: str
    checksum: str


class LineageWalk:
    """Follows checkpoints from some runs in both directions, one question after the other."""

    def __init__(self, runs: Iterable[TrainingRun]) -> None:
        self._runs: dict[str, TrainingRun] = {}
        self._open: deque[CheckpointQuestion] = deque()
        self._known: set[CheckpointQuestion] = set()
        self._asked = 0
        self._notes: list[str] = []
        self._is_cut = False
        self.found(runs)

    def next(self) -> CheckpointQuestion | None:
        """Return the next question; None at the end."""
        if not self._open:
            return None
        if self._asked >= MOST_QUESTIONS:
            self._is_cut = True
            return None
        self._asked += 1
        return self._open.popleft()

    def found(self, runs: Iterable[TrainingRun]) -> None:
        """Add runs that the caller may see."""
        for run in sorted(runs, key=lambda each: (each.started, each.id)):
            if run.id in self._runs:
                continue
            if len(self._runs) >= MOST_LINEAGE_RUNS:
                self._is_cut = True
                return
            self._runs[run.id] = run
            questions = [CheckpointQuestion(SAVED_TAG, each) for each in run.loaded]
            questions += [CheckpointQuestion(LOADED_TAG, each) for each in run.saved]
            new = [each for each in dict.fromkeys(questions) if each not in self._known]
            self._known.update(new)
            self._open.extend(new)

    def stop(self, reason: str) -> None:
        """Ask nothing more, for this reason."""
        self._open.clear()
        self._notes.append(reason)

    def lineage(self) -> RunLineage:
        """Return what was found."""
        runs = sorted(self._runs.values(), key=lambda each: (each.started, each.id))
        links: list[CheckpointLink] = []
        notes = list(self._notes)
        for run in runs:
            for checksum in run.loaded:
                more, problems = _links(run, checksum, runs)
                links += more
                notes += problems if self._was_asked(checksum) else []
        loop = _loop(runs, links)
        if loop:
            notes.append(f"A loop: {_names(loop)} load what each other wrote. That can't be true.")
        if self._is_cut or (self._open and self._asked >= MOST_QUESTIONS):
            notes.append(f"The chain goes on; {len(runs)} runs of it are shown.")
        return RunLineage(runs=tuple(runs), links=tuple(links), notes=tuple(notes))

    def _was_asked(self, checksum: str) -> bool:
        return CheckpointQuestion(SAVED_TAG, checksum) not in self._open and not self._notes


def _links(
    run: TrainingRun, checksum: str, runs: Sequence[TrainingRun]
) -> tuple[list[CheckpointLink], list[str]]:
    """The links of one checkpoint that a run loaded, and what is odd about them."""
    wrote = [each for each in runs if checksum in each.saved and each.id != run.id]
    if not wrote and checksum in run.saved:
        # A run that was resumed from its own checkpoint.
        return [], []
    short = checksum[:SHORT]
    if not wrote:
        return [], [f"No run that you may see wrote {short}, which {_name(run)} loaded."]
    sound = [each for each in wrote if run.ended is None or each.started <= run.ended]
    notes = [
        f"{_name(each)} says that it wrote {short}, but it began after {_name(run)} had ended."
        for each in wrote
        if each not in sound
    ]
    if len(sound) > 1:
        notes.append(f"{len(sound)} runs say that they wrote {short}: {_names(sound)}.")
    links = [
        CheckpointLink(checksum=checksum, saved_by=each.id, loaded_by=run.id) for each in sound
    ]
    return links, notes


def _loop(runs: Sequence[TrainingRun], links: Sequence[CheckpointLink]) -> list[TrainingRun]:
    """Those that are in a loop: what has nothing before or after it is taken away."""
    left = {each.id for each in runs}
    while True:
        inner = [each for each in links if {each.saved_by, each.loaded_by} <= left]
        inside = {each.saved_by for each in inner} & {each.loaded_by for each in inner}
        if inside == left:
            return [each for each in runs if each.id in left]
        left = inside


def _name(run: TrainingRun) -> str:
    return run.name or run.id


def _names(runs: Sequence[TrainingRun]) -> str:
    *before, last = [_name(each) for each in runs]
    return f"{', '.join(before)} and {last}" if before else last
