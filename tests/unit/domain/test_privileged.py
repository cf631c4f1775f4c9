"""Questions to the root helper: read back whole, and nothing else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.administration import (
    ListReservations,
    MakeReservation,
    NodeChange,
    NodeQuestion,
    RemoveReservation,
    RightsQuestion,
    TenantAct,
    TenantQuestion,
    VerbGroup,
)
from lattice.domain.grant import Act
from lattice.domain.privileged import (
    VERBS,
    Answer,
    BadQuestion,
    Challenge,
    DumpStacks,
    Enter,
    EnterSigned,
    HelperRole,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
    ProbeMounts,
    Question,
    ReadTasks,
    Rejoin,
    RejoinSigned,
    SetClock,
    WatchCounters,
    digest_of,
    read_answer,
    read_request,
    verb_of,
    write_answer,
    write_request,
)
from lattice.domain.submission import CancelQuestion, SubmitQuestion

SUBMIT = SubmitQuestion(
    options=("--nodes=2",),
    arguments=("a b", ""),
    environment=(("A", "ü"),),
    directory="/home/alice",
    directory_required=True,
    script_sha256="0" * 64,
)
QUESTIONS: list[Question] = [
    SUBMIT,
    CancelQuestion(jobs=("1", "2_3", "4+5")),
    NodeQuestion(cluster="lab", change=NodeChange.DRAIN, nodes=("n1", "n2"), reason="o: ü"),
    TenantQuestion(
        cluster="lab", act=TenantAct.CREATE, name="a", max_nodes=-1, max_gpus=0, max_jobs=None
    ),
    RightsQuestion(),
    MakeReservation(cluster="lab", name="lattice-claim-a", user="alice", nodes=("n1", "n2")),
    RemoveReservation(cluster="lab", name="lattice-claim-a"),
    ListReservations(cluster="lab", after=""),
    Enter("0" * 32, ("bash", "-l"), "xterm", 24, 80, "/tools/profilers.squashfs", False),
    EnterSigned("0" * 32, ("bash", "-l"), "xterm", 24, 80, "", False),
    Rejoin("0" * 32),
    RejoinSigned("0" * 32),
    OpenOutput((1, 2)),
    OpenOutputFile("/home/alice/slurm-1.out"),
    NoteOutput(7, (1, 2)),
    OpenNoted(1, 2, 64),
    WatchCounters(),
    ProbeMounts(100),
    ReadTasks(),
    DumpStacks(100),
    Challenge(),
    SetClock("k.p.s"),
]


@pytest.mark.spec("AUTH-9")
def test_every_verb_has_a_question_and_an_act_of_its_own() -> None:
    assert {type(each) for each in QUESTIONS} == {verb.question for verb in VERBS.values()}
    # Several ways to name an output are one act, and so are a terminal and the way back to it,
    # and the two words about the time.
    outputs = {name for name, verb in VERBS.items() if verb.act is Act.READ_OUTPUT}
    assert outputs == {"open_output", "open_output_file", "note_output", "open_noted"}
    assert len({verb.act for verb in VERBS.values()}) == len(VERBS) - 7
    free = [name for name, verb in VERBS.items() if not verb.granted]
    assert free == ["note_output", "watch_counters", "challenge", "set_clock"]
    gate = {name for name, verb in VERBS.items() if verb.role is HelperRole.GATE}
    claims = {"make_reservation", "remove_reservation", "list_reservations"}
    changes = {"change_nodes", "change_tenant", *claims}
    assert gate == {"submit", "cancel", "show_rights", *changes}
    allowed = {name for name, verb in VERBS.items() if verb.group is not None}
    assert allowed == changes
    assert claims == {name for name, verb in VERBS.items() if verb.group is VerbGroup.CLAIMS}
    assert VERBS["submit"].act is Act.SUBMIT


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: type(each).__name__)
def test_a_question_reads_back_whole(question: Question) -> None:
    grant, verb, found = read_request(write_request("g", question))
    assert (grant, verb, found) == ("g", verb_of(question), question)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_the_digest_covers_every_word_and_not_the_grant() -> None:
    digests = {digest_of(each) for each in QUESTIONS}
    assert len(digests) == len(QUESTIONS)
    assert digest_of(SubmitQuestion(script_sha256="0" * 64)) != digest_of(
        SubmitQuestion(script_sha256="1" * 64)
    )
    _, _, found = read_request(write_request("another grant", SUBMIT))
    assert digest_of(found) == digest_of(SUBMIT)


@pytest.mark.spec("AUTH-9")
@given(st.integers(), st.integers())
def test_lists_of_words_can_not_be_shifted_into_each_other(left: int, right: int) -> None:
    words = tuple(str(each) for each in (left, right))
    one = SubmitQuestion(options=("-a",), arguments=words, script_sha256="0" * 64)
    two = SubmitQuestion(options=("-a", *words), script_sha256="0" * 64)
    assert digest_of(one) != digest_of(two)


def _told(**change: Any) -> bytes:
    told = json.loads(write_request("g", SUBMIT))
    question = {**told["question"], **change.pop("question", {})}
    return json.dumps({**told, "question": question, **change}).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"grant": 1},
        {"verb": "reboot"},
        {"verb": "watch_counters"},
        {"verb": None},
        {"verb": "cancel"},
        {"more": 1},
        {"question": {"options": "--nodes=2"}},
        {"question": {"options": [1]}},
        {"question": {"options": ["nodes"]}},
        {"question": {"options": ["--"]}},
        {"question": {"options": ["--a=\0"]}},
        {"question": {"options": ["--a"] * 300}},
        {"question": {"arguments": ["x" * 9000]}},
        {"question": {"arguments": ["\ud800"]}},
        {"question": {"environment": {"A": "b"}}},
        {"question": {"environment": [["A", "b"], ["A", "c"]]}},
        {"question": {"environment": [["LD_PRELOAD", "x"]]}},
        {"question": {"environment": [["A", "b", "c"]]}},
        {"question": {"directory": "relative"}},
        {"question": {"directory": "/x\0"}},
        {"question": {"directory_required": 1}},
        {"question": {"script_sha256": "0"}},
        {"question": {"user": "root"}},
    ],
)
def test_what_is_not_exactly_a_question_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion):
        read_request(_told(**change))


@pytest.mark.parametrize("pids", [(), (0,), (-1,), (2**30,), (1,) * 129])
def test_process_ids_are_bounded(pids: tuple[int, ...]) -> None:
    for question in (OpenOutput(pids), NoteOutput(7, pids)):
        with pytest.raises(BadQuestion):
            read_request(write_request("g", question))


@pytest.mark.parametrize("timeout_ms", [-1, 0, 49, 15_001, 2**40])
def test_a_probe_takes_neither_no_time_nor_long(timeout_ms: int) -> None:
    for question in (ProbeMounts(timeout_ms), DumpStacks(timeout_ms)):
        with pytest.raises(BadQuestion):
            read_request(write_request("g", question))


@pytest.mark.parametrize(
    "question",
    [
        NoteOutput(0, (1,)), NoteOutput(-1, (1,)), NoteOutput(2**33, (1,)),
        OpenNoted(-1, 0, 0), OpenNoted(0, -1, 0), OpenNoted(0, 0, -1), OpenNoted(2**60, 0, 0),
    ],
)  # fmt: skip
def test_jobs_and_moments_are_bounded(question: Question) -> None:
    with pytest.raises(BadQuestion):
        read_request(write_request("g", question))


@pytest.mark.parametrize("path", ["", "relative", "~/x", "/x\0y", "/" + "ü" * 2048, "/\udcff"])
def test_a_path_is_absolute_and_bounded(path: str) -> None:
    with pytest.raises(BadQuestion):
        read_request(write_request("g", OpenOutputFile(path)))
    read_request(write_request("g", OpenOutputFile("/" + "ü" * 2047)))


def test_a_name_that_stands_twice_is_refused() -> None:
    raw = write_request("g", CancelQuestion(jobs=("1",)))
    twice = raw.replace(b'"jobs":["1"]', b'"jobs":["1"],"jobs":["2"]')
    with pytest.raises(BadQuestion):
        read_request(twice)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-be"])
def test_a_question_is_utf_8_and_nothing_else(encoding: str) -> None:
    raw = write_request("g", CancelQuestion(jobs=("1",)))
    with pytest.raises(BadQuestion):
        read_request(raw.decode().encode(encoding))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda verb, question: json.dumps(
            {"grant": "g", "verb": verb, "question": question}
        ).encode(),
        st.sampled_from(sorted(VERBS)) | st.text(),
        json_values
        | st.fixed_dictionaries({"jobs": json_values})
        | st.fixed_dictionaries({"pids": json_values})
        | st.fixed_dictionaries({"pid": json_values, "descriptor": json_values}),
    )
)
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    try:
        _, verb, question = read_request(raw)
    except BadQuestion:
        return
    assert isinstance(question, verb.question)


@given(
    st.sampled_from(Outcome), st.text(), st.integers(), st.text(), st.lists(st.text(), max_size=3)
)
def test_an_answer_reads_back_whole(
    outcome: Outcome, message: str, code: int, output: str, notes: list[str]
) -> None:
    answer = Answer(
        outcome=outcome, message=message, exit_code=code, output=output, notes=tuple(notes)
    )
    assert read_answer(write_answer(answer)) == answer


@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_an_answer_by_chance(raw: bytes) -> None:
    with pytest.raises(BadQuestion):
        read_answer(raw)
