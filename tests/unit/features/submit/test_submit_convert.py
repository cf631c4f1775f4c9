"""The two shapes of a submission agree, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lattice.features.submit.convert import cancel_message, submit_message, submit_request
from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest
from lattice.wire.v1 import submit_pb2 as pb

FULL = SubmitRequest(
    script="s", file="f", arguments=("a", "b"), nodes="2", walltime="1h", gpus="3", vcluster="v",
    project="p", name="n", array="1-2", depends_on=("5:any",), labels={"l": "1"}, output="o",
    directory="/d", directory_required=True, environment={"E": "1"}, options=("--x",),
)  # fmt: skip


def test_a_request_has_the_same_fields_over_rest_and_grpc() -> None:
    names = {field.name for field in fields(SubmitRequest)}
    # REST has a header for the key.
    assert set(pb.SubmitAllocationRequest.DESCRIPTOR.fields_by_name) == {*names, "idempotency_key"}
    assert all(getattr(FULL, name) for name in names)


def test_a_request_arrives_whole() -> None:
    told = {field.name: getattr(FULL, field.name) for field in fields(FULL)}
    assert submit_request(pb.SubmitAllocationRequest(**told)) == FULL


@pytest.mark.parametrize(
    ("kind", "message"), [(SubmitAnswer, pb.SubmitAnswer), (CancelAnswer, pb.CancelAnswer)]
)
def test_dataclass_and_message_agree(kind: type, message: type) -> None:
    assert {field.name for field in fields(kind)} == set(message.DESCRIPTOR.fields_by_name)


def test_answers_cross_the_wire() -> None:
    answer = SubmitAnswer(id="1", job_id=1, repeated=True, notes=("n",))
    assert list(submit_message(answer).notes) == ["n"]
    assert cancel_message(CancelAnswer(id="1", cancelling=True, state="running")).cancelling
