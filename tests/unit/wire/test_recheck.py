"""The caller of an open stream is checked again after the same time, over REST and gRPC."""

from __future__ import annotations

import inspect

from lattice.wire import events, interceptor
from lattice.wire.guard import GuardInterceptor


def test_streams_of_both_listeners_are_checked_every_minute() -> None:
    over_grpc = inspect.signature(GuardInterceptor).parameters["recheck_every_s"].default
    assert over_grpc == events.RECHECK_EVERY_S == interceptor.RECHECK_EVERY_S == 60.0
