"""A diagnosis and a picture of stacks as they cross the wire."""

from __future__ import annotations

from lattice.base.errors import UsageError
from lattice.features.diag.model import Area, Diagnosis, DiagQuery, StackPicture
from lattice.wire.convert import message_of
from lattice.wire.v1 import diag_pb2 as pb


def query_of(request: pb.GetDiagnosticsRequest) -> DiagQuery:
    """Raises `UsageError`."""
    try:
        areas = tuple(Area(each) for each in dict.fromkeys(request.areas))
    except ValueError:
        words = ", ".join(each.value for each in Area)
        raise UsageError("That is no area.", hint=f"There are {words}.") from None
    return DiagQuery(areas=areas)


def diagnosis_message(diagnosis: Diagnosis) -> pb.Diagnosis:
    return message_of(diagnosis, pb.Diagnosis)


def stacks_message(picture: StackPicture) -> pb.StackPicture:
    return message_of(picture, pb.StackPicture)
