"""A submission over REST and over gRPC is the same, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lattice.base.errors import UsageError
from lattice.base.operation import request_fields
from lattice.features.submit.model import CancelAnswer, SubmitAnswer
from lattice.features.submit.operations import (
    SUBMIT_ALLOCATION,
    SubmitRequest,
    submit_allocation,
)
from lattice.wire.convert import message_of, value_of
from lattice.wire.v1 import submit_pb2 as pb

FULL = SubmitRequest(
    script="s", file="f", arguments=("a", "b"), nodes="2", walltime="1h", gpus="3", vcluster="v",
    project="p", name="n", array="1-2", depends_on=("5:any",), labels={"l": "1"}, output="o",
    directory="/d", directory_required=True, environment={"E": "1"}, options=("--x",),
    idempotency_key="k", uenv="u", view="w", tools_uenv="t",
)  # fmt: skip
ONLY_REST = frozenset({"key_optional", "repeated"})


def test_a_request_has_the_same_fields_over_rest_and_grpc() -> None:
    body = {each.name for each in SUBMIT_ALLOCATION.body_fields()}
    # REST has a header for the key.
    assert set(pb.SubmitAllocationRequest.DESCRIPTOR.fields_by_name) == {*body, "idempotency_key"}
    headers = {each.name: each.wire_name for each in request_fields(SubmitRequest)
               if each.rule.header}  # fmt: skip
    assert headers == {
        "idempotency_key": "Idempotency-Key",
        "key_optional": "Lattice-Key-Optional",
        "repeated": "Lattice-Repeated",
    }


def test_a_request_arrives_whole() -> None:
    names = {each.name for each in fields(FULL)} - ONLY_REST
    told = {name: getattr(FULL, name) for name in names}
    assert all(told.values())
    message = pb.SubmitAllocationRequest(**told)
    assert value_of(message, SubmitRequest, missing=ONLY_REST) == FULL


def test_a_key_travels_in_its_header_alone() -> None:
    call = submit_allocation(replace(FULL, idempotency_key=""), idempotency_key="k")
    assert call.key == "k"
    assert b"idempotency_key" not in (call.body or b"")
    assert submit_allocation(replace(FULL, idempotency_key="")).key == ""
    assert submit_allocation(FULL, idempotency_key="other").key == "other"
    with pytest.raises(UsageError, match="key is not valid"):
        submit_allocation(FULL, idempotency_key="a\nb")


def test_answers_cross_the_wire() -> None:
    answer = SubmitAnswer(id="1", job_id=1, repeated=True, notes=("n",))
    assert list(message_of(answer, pb.SubmitAnswer).notes) == ["n"]
    cancelled = CancelAnswer(id="1", cancelling=True, state="running")
    assert message_of(cancelled, pb.CancelAnswer).cancelling
