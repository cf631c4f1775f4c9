"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.features.telemetry.operations import GET_TELEMETRY, SET_TELEMETRY
from lattice.features.telemetry.service.mode_switch import TelemetrySwitching
from lattice.features.telemetry.service.modes import AgreedModes
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: TelemetrySwitching) -> tuple[AnyBinding, ...]:
    return (
        GET_TELEMETRY.to(lambda actor, asked: service.telemetry(actor, asked.id)),
        SET_TELEMETRY.to(service.switch),
    )


def wire(foundation: Foundation, modes: AgreedModes) -> Wiring:
    """Return the feature's part of the server for people."""
    service = TelemetrySwitching(
        foundation.finder,
        modes,
        foundation.reads,
        foundation.clock,
        foundation.journal,
        foundation.sensitive_acts,
    )
    return Wiring(bindings=bindings(service))
