from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lattice.base.errors import UsageError
from lattice.base.text import cells
from lattice.features.agents.command import ENROL, agents, enrol, reinstate, revoke
from tests.fakes.shell import FakeShell


def agent(node: str = "n1", **more: Any) -> dict[str, Any]:
    return {
        "node": node,
        "link": "linked",
        "replica": "s1",
        "since": "2026-11-15T13:00:00Z",
        "version": "0.1.0",
        "certificate_expires": "2026-11-16T10:02:11Z",
        **more,
    }


LOST = agent(
    "n2",
    link="lost",
    replica="",
    certificate_expires="2026-11-15T12:02:11Z",
    revoked="2026-11-15T14:00:00Z",
    revoked_by="admin-1",
    revoked_reason="stolen",
)
SUSPECT = {"node": "n3", "quarantined": "2026-11-15T14:01:00Z", "quarantine": "spoke as n1"}


@pytest.mark.spec("AUTH-9")
def test_a_token_is_shown_with_what_to_do_with_it() -> None:
    made = {"node": "n1", "token": "tok-123", "expires": "2026-11-15T15:02:11Z"}
    shell = FakeShell({"/v1/agents/enrolments": made})
    assert enrol(shell, node="n1", life=None, again=False, network=()) == 0
    assert shell.out.splitlines() == [
        "Token for n1, good once within 1 h:",
        "",
        "  tok-123",
        "",
        "On the node, put it into a file only the agent's user can read, then:",
        "",
        (
            "  lattice-agent --node-id n1 --quorum-endpoint https://HOST:50051 "
            "--bootstrap-ca CA.pem --enrol-token-file FILE"
        ),
    ]
    assert json.loads(shell.calls[0].body or b"") == {"node": "n1"}, "an hour is usual"
    assert shell.calls[0].repeatable, "a second token is harmless: nobody has the first"


@pytest.mark.spec("AUTH-9")
def test_the_join_key_alone_is_data() -> None:
    made = {"node": "n[1-9]", "token": "t", "expires": "2026-11-22T14:02:11Z", "join_key": "key-1"}
    shell = FakeShell({"/v1/agents/enrolments": made})
    assert enrol(shell, node="n[1-9]", life=None, again=False, network=()) == 0
    assert shell.out == "key-1\n"
    assert shell.notes[0] == "Join key for n[1-9], good once for each node within 7 d:"
    assert "/etc/lattice/join.key" in shell.notes[1]
    enrol(shell, node="n[1-9]", life=None, again=True, network=())
    assert json.loads(shell.calls[1].body or b"")["again"] is True
    assert "at each boot" in shell.notes[2]


def test_a_token_may_live_longer_and_be_a_document() -> None:
    made = {"node": "n1", "token": "tok-123", "expires": "2026-11-15T15:02:11Z"}
    shell = FakeShell({"/v1/agents/enrolments": made}, output="json")
    option = ENROL.params[1]
    assert option.read is not None  # type: ignore[union-attr]
    enrol(shell, node="n1", life=option.read("2d"), again=False, network=())  # type: ignore[union-attr, arg-type]
    assert json.loads(shell.calls[0].body or b"")["life_s"] == 172800
    assert json.loads(shell.out)["token"] == "tok-123"


def test_the_list_says_who_is_there_and_who_is_believed() -> None:
    shell = FakeShell({"/v1/agents": {"agents": [agent(), LOST, SUSPECT], "sources": []}})
    assert agents(shell) == 0
    assert shell.out.splitlines() == [
        "NODE  AGENT       HELPER  SPOOL  CLOCK  VERSION  CERTIFICATE      TRUST",
        "n1    ● linked    —       —      —      0.1.0    20 h left        ● trusted",
        (
            "n2    ○ lost      —       —      —      0.1.0    expired 2 h ago  "
            "✗ revoked 14:00:00Z by admin-1: stolen"
        ),
        (
            "n3    never seen  —       —      —      —        none             "
            "✗ quarantine since 14:01:00Z: spoke as n1"
        ),
    ]


FACTS = {
    "helper": "ok",
    "latency": "libbpf.so.1 is not installed",
    "spool_bytes": 12 * 2**20,
    "spool_most_bytes": 2**30,
    "free_bytes": 40 * 2**30,
    "clock_ahead_s": -3.21,
}


def test_the_list_shows_what_agents_measured_of_themselves() -> None:
    away = FACTS | {"helper": "Connection refused", "latency": "", "spool_bytes": 0}
    answer = {"agents": [agent(facts=FACTS), agent("n2", facts=away)], "sources": []}
    shell = FakeShell({"/v1/agents": answer}, width=80)
    agents(shell)
    assert shell.out.splitlines() == [
        "NODE  AGENT     HELPER  SPOOL    CLOCK   VERSION  CERTIFICATE  TRUST",
        "n1    ● linked  ✓ ok    ~12 MiB  -3.2 s  0.1.0    20 h left    ● trusted",
        "n2    ● linked  ✗ away  0        -3.2 s  0.1.0    20 h left    ● trusted",
    ]
    wide = FakeShell({"/v1/agents": answer}, output="wide")
    agents(wide)
    cells_of = re.split(" {2,}", wide.out.splitlines()[1])
    assert cells_of[6:10] == ["s1", "13:00:00Z", "~40 GiB free", "✗ off"]


def test_on_a_terminal_it_keeps_to_its_width() -> None:
    shell = FakeShell({"/v1/agents": {"agents": [agent(), LOST, SUSPECT], "sources": []}}, width=80)
    agents(shell)
    assert all(cells(line) <= 80 for line in shell.out.splitlines())


def test_an_empty_list_says_how_to_begin_and_an_old_one_that_it_is_old() -> None:
    source = {"name": "state", "ok": False}
    shell = FakeShell({"/v1/agents": {"agents": [], "sources": [source]}})
    agents(shell)
    assert shell.notes == ["No agent has enrolled yet. Begin with: lattice admin enrol NODE"]
    assert shell.warnings == ["state does not answer; this is the last known state."]


def test_revoking_needs_a_reason_and_tells_what_came_of_it() -> None:
    shell = FakeShell({"/v1/agents/n2/revoke": LOST, "/v1/agents/n2/restore": agent("n2")})
    with pytest.raises(UsageError, match="reason"):
        revoke(shell, node="n2", reason=None)
    revoke(shell, node="n2", reason="stolen")
    assert shell.out == "n2  ✗ revoked 14:00:00Z by admin-1: stolen\n"
    assert json.loads(shell.calls[0].body or b"") == {"reason": "stolen"}
    shell.out = ""
    reinstate(shell, node="n2")
    assert shell.out == "n2  ● trusted\n"


def test_a_name_can_not_leave_its_place_in_the_address() -> None:
    shell = FakeShell({"/v1/agents/a%2Fb/restore": agent("a/b")})
    reinstate(shell, node="a/b")
    assert shell.calls[0].path == "/v1/agents/a%2Fb/restore"


def test_hostile_text_is_shown_as_it_is() -> None:
    spoiled = agent(quarantine="\x1b[2Jgone")
    shell = FakeShell({"/v1/agents": {"agents": [spoiled], "sources": []}})
    agents(shell)
    assert "\x1b" not in shell.out
