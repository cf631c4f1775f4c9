"""Wires the feature: its examiner and its operation."""

from __future__ import annotations

from lattice import __version__
from lattice.features.doctor.operations import EXAMINE
from lattice.features.doctor.service.examiner import Examiner
from lattice.features.doctor.service.facts import Inspection
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(foundation: Foundation, inspection: Inspection) -> Wiring:
    """Return the feature's part of the server. `inspection` measures what the shell has."""
    examiner = Examiner(foundation, inspection, __version__)
    examine = EXAMINE.to(lambda _actor, _asked: examiner.examine())
    return Wiring(bindings=(examine,), close=examiner.aclose)
