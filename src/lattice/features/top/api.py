"""The feature's verb as a call to the server. No I/O here; the SDK makes the call."""

from __future__ import annotations

from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.top.model import TopAnswer, TopMode

_PATIENCE_S = 20.0


def query_metrics(
    reference: str,
    *,
    mode: TopMode | str = TopMode.SUMMARY,
    duration_s: int | None = None,
    attempt: int = 0,
    history: bool = False,
    explain: bool = False,
) -> Call[TopAnswer]:
    """What an allocation uses now, or used over a time."""
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    try:
        chosen = TopMode(mode)
    except ValueError:
        words = ", ".join(each.value for each in TopMode)
        raise UsageError(f"{mode!r} is no mode.", hint=f"There are {words}.") from None
    return Call(
        "GET",
        f"/v1/allocations/{quote(name, safe='')}/metrics",
        TopAnswer,
        params(
            mode=chosen.value,
            duration=None if duration_s is None else str(duration_s),
            attempt=attempt or None,
            history=history,
            explain=explain,
        ),
        timeout_s=_PATIENCE_S,
    )
