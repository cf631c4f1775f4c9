"""Which rights a child of the node's helper keeps, by the verb it answers."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import VERBS, ReadProcessCounters
from lattice.helper.judge import Asked
from lattice.helper.main import _node
from lattice.helper.privilege import Capability, Kernel


class _Kernel(Kernel):
    """Writes down what it is told to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Collection[int]] = []

    def set_capabilities(self, kept: Collection[int]) -> None:
        self.kept.append(tuple(kept))


@pytest.mark.spec("AUTH-9")
def test_whoever_reads_can_join_no_namespace() -> None:
    kernel = _Kernel()
    grant = Grant(
        id="0" * 32, act=Act.READ_COUNTERS, place="n1", subject="s", user="nobody-of-that-name",
        job_id=1, issued=0, expires=1,
    )  # fmt: skip
    asked = Asked(VERBS["read_process_counters"], ReadProcessCounters((1,)), grant)
    _node(kernel, None, None)(asked, ())
    assert kernel.kept == [(Capability.SETUID, Capability.SETGID, Capability.SYS_PTRACE)]
