"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from lattice.base.call import Call, params
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_HINT, BadReference, parse_reference
from lattice.features.diag.model import Area, Diagnosis, StackPicture

_PATIENCE_S = 20.0
_STACKS_PATIENCE_S = 30.0
PAGES = (Area.NETWORK, Area.STORAGE, Area.GPU)
"""Those that have a page of their own."""


def diagnose(reference: str, *, areas: Sequence[Area | str] = ()) -> Call[Diagnosis]:
    """What is sick about a running job; of some areas, or of all."""
    try:
        chosen = tuple(dict.fromkeys(Area(each) for each in areas))
    except ValueError:
        words = ", ".join(each.value for each in Area)
        raise UsageError("That is no area.", hint=f"There are {words}.") from None
    path = f"{_path(reference)}/diagnostics"
    if len(chosen) == 1 and chosen[0] in PAGES:
        return Call("GET", f"{path}/{chosen[0].value}", Diagnosis, timeout_s=_PATIENCE_S)
    wanted = ",".join(each.value for each in chosen)
    return Call("GET", path, Diagnosis, params(areas=wanted or None), timeout_s=_PATIENCE_S)


def take_stacks(reference: str) -> Call[StackPicture]:
    """Where every rank of one's own job stands."""
    return Call("GET", f"{_path(reference)}/stacks", StackPicture, timeout_s=_STACKS_PATIENCE_S)


def _path(reference: str) -> str:
    try:
        name = str(parse_reference(reference))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None
    return f"/v1/allocations/{quote(name, safe='')}"
