"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.submit.model import CancelAnswer, SubmitAnswer, SubmitRequest
from lattice.wire.convert import message_of
from lattice.wire.v1 import submit_pb2 as pb


def submit_request(message: pb.SubmitAllocationRequest) -> SubmitRequest:
    """What is asked, from the wire."""
    return SubmitRequest(
        script=message.script,
        file=message.file,
        arguments=tuple(message.arguments),
        nodes=message.nodes,
        walltime=message.walltime,
        gpus=message.gpus,
        vcluster=message.vcluster,
        project=message.project,
        name=message.name,
        array=message.array,
        depends_on=tuple(message.depends_on),
        labels=dict(message.labels),
        output=message.output,
        directory=message.directory,
        directory_required=message.directory_required,
        environment=dict(message.environment),
        options=tuple(message.options),
    )


def submit_message(answer: SubmitAnswer) -> pb.SubmitAnswer:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.SubmitAnswer)


def cancel_message(answer: CancelAnswer) -> pb.CancelAnswer:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.CancelAnswer)
