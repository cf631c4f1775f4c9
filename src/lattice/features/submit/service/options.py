"""A request as `sbatch`'s own options: what is named, what the script says itself, what can't be.

Only as much of `sbatch` is known here as is needed not to contradict it; everything else is its
own to judge. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from lattice.base.errors import UsageError
from lattice.base.moment import parse_duration
from lattice.domain.allocation import BadReference, parse_reference
from lattice.domain.labels import Marks, check_labels, write_comment
from lattice.domain.vcluster import Vclusters
from lattice.features.submit.model import SubmitRequest

_SLURM_TIME = re.compile(r"[0-9:-]+|UNLIMITED|INFINITE", re.IGNORECASE)
_CONDITIONS = {"success": "afterok", "failure": "afternotok", "any": "afterany"}
_UNCLEAN = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST_NAME = 64

# sbatch's short options as getopt reads them: `:` takes a value, `::` only one glued to it.
_SHORT = "A:B:C:D:F:G:HJ:L:M:N:OQS:VWa:b:c:d:e:hi:k::m:n:o:p:q:st:vw:x:"
_TAKES_VALUE = {letter: bool(colons) for letter, colons in re.findall(r"([A-Za-z])(:*)", _SHORT)}

# Each by its short form and by its long one, which getopt lets people cut short.
_JOB_NAME, _COMMENT = ("-J", "--job-name", 5), ("", "--comment", 5)
_REFUSED = (
    (("-W", "--wait", 6), "`lattice wait ID` waits for it."),
    (("-M", "--clusters", 6), "A server of Lattice speaks for one cluster."),
    (("", "--wrap", 4), "Give the command behind `--`."),
)


def sbatch_options(request: SubmitRequest, views: Vclusters, key: str) -> tuple[str, ...]:
    """The words between `sbatch` and the script. `key` is the digest of an idempotency key."""
    passed = _passed(request.options)
    own = script_words(request.script)
    for words in (passed, own):
        _refuse(words)
    options = [
        *_plain(request),
        *_view(request.vcluster, views),
        *_dependency(request.depends_on),
        *_comment(request, key, (*passed, *own)),
        *passed,
    ]
    if not request.name and not any(_is(word, _JOB_NAME) for word in (*passed, *own)):
        name = job_name(request.file)
        options += [f"--job-name={name}"] if name else []
    return tuple(options)


def _plain(request: SubmitRequest) -> Iterable[str]:
    named = (
        ("nodes", request.nodes),
        ("time", slurm_time(request.walltime) if request.walltime else ""),
        ("gpus", request.gpus),
        ("account", request.project),
        ("job-name", request.name),
        ("array", request.array),
        ("output", request.output),
    )
    return (f"--{name}={value}" for name, value in named if value)


def slurm_time(text: str) -> str:
    """Slurm's form as it is (a bare number is minutes), `2h30m` as minutes, rounded up."""
    if _SLURM_TIME.fullmatch(text):
        return text
    return str(-(-parse_duration(text) // 60))


def _view(name: str, views: Vclusters) -> Iterable[str]:
    if not name:
        return ()
    view = next((each for each in views.views if each.name == name), None)
    if view is None:
        known = ", ".join(each.name for each in views.views) or "none is configured"
        raise UsageError(f"There is no vCluster {name[:60]!r}.", hint=f"There are: {known}.")
    return (f"--partition={view.partition}", *((f"--qos={view.qos}",) if view.qos else ()))


def _dependency(wanted: Sequence[str]) -> Iterable[str]:
    parts = []
    for text in wanted:
        name, _, condition = text.partition(":")
        try:
            reference = parse_reference(name)
        except BadReference as problem:
            raise UsageError(f"{problem}.", hint=_DEPENDS_HINT) from None
        kind = _CONDITIONS.get(condition or "success")
        if kind is None or reference.submitted is not None:
            raise UsageError(f"{text[:60]!r} is no dependency.", hint=_DEPENDS_HINT)
        parts.append(f"{kind}:{reference}")
    return (f"--dependency={','.join(parts)}",) if parts else ()


_DEPENDS_HINT = "Write ID:success, ID:failure or ID:any."


def _comment(request: SubmitRequest, key: str, words: Sequence[str]) -> Iterable[str]:
    check_labels(request.labels)
    comment = write_comment(Marks(request.labels, key))
    if comment and any(_is(word, _COMMENT) for word in words):
        raise UsageError(
            "A comment of your own can't go with labels or an idempotency key.",
            hint="Both are kept in Slurm's job comment: leave one of them out.",
        )
    return (f"--comment={comment}",) if comment else ()


def _passed(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0].startswith("-"):
        raise UsageError(f"{words[0][:60]!r} is no option of sbatch.", hint="Options have a dash.")
    if "--" in words or "" in words:
        raise UsageError("An option passed on to sbatch is empty.")
    return words


def _refuse(words: Sequence[str]) -> None:
    for word in words:
        letters = short_options(word)
        if letters and letters[-1] not in _TAKES_VALUE:
            raise UsageError(
                f"{word[:60]!r} can't be passed on to sbatch: {letters[-1]!r} is no option of it.",
                hint="Give each option by its long name, and its value behind `=`.",
            )
        for option, hint in _REFUSED:
            if _is(word, option):
                raise UsageError(f"{word[:60]!r} can't be passed on to sbatch.", hint=hint)


def _is(word: str, option: tuple[str, str, int]) -> bool:
    short, long, least = option
    if word.startswith("--"):
        name = word.partition("=")[0]
        return len(name) >= least and long.startswith(name)
    return bool(short) and short[1] in short_options(word)


def short_options(word: str) -> str:
    """The letters of `-HW` or `-HJname` that sbatch takes for options, up to an unknown one.

    A word is looked at whatever stands before it: where it is a value in fact, too much is
    refused, never too little.
    """
    if not word.startswith("-") or word.startswith("--") or word[1:2].isdigit():
        return ""
    letters = ""
    for letter in word[1:]:
        letters += letter
        if _TAKES_VALUE.get(letter, True):
            break
    return letters


def script_words(script: str) -> tuple[str, ...]:
    """The words of the script's `#SBATCH` lines, as far as Slurm itself would read."""
    words: list[str] = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            try:
                words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:  # an open quote is sbatch's to judge
                words += line.split()[1:]
        elif line.strip() and not line.startswith("#"):
            break
    return tuple(words)


def job_name(file: str) -> str:
    """A job's name after its script: the last part of the path, with nothing odd in it."""
    last = file.rstrip("/").rpartition("/")[2]
    return _UNCLEAN.sub("_", last).strip("-_")[:_LONGEST_NAME]
