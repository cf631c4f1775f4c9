"""The clock of the root helper beside the agent: requests its nonce, and sets its time."""

from __future__ import annotations

from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.errors import InternalError, LatticeError, PermissionRefused, Unavailable
from lattice.base.text import inert
from lattice.domain.privileged import Answer, Challenge, Outcome, Question, SetClock
from lattice.domain.signedtime import is_nonce


class HelperClock:
    """Needs no grant: it reveals nothing, and the helper trusts only a server's signature."""

    def __init__(self, channel: HelperChannel) -> None:
        self._channel = channel

    async def challenge(self) -> str:
        """A nonce for a server to sign, within seconds. Raises `LatticeError`."""
        nonce = (await self._ask(Challenge())).output
        if not is_nonce(nonce):
            raise InternalError("lattice-helper said what can't be: no word to sign.")
        return nonce

    async def set(self, signed: str) -> None:
        """Pass the signed time to the helper. Raises `LatticeError`."""
        await self._ask(SetClock(signed))

    async def _ask(self, question: Question) -> Answer:
        try:
            answer, passed = await self._channel.ask("", question)
        except OSError as error:
            raise Unavailable(
                f"lattice-helper did not answer: {str(error) or 'not in time'}."
            ) from None
        packet.close_all(passed)
        if answer.outcome is Outcome.DONE:
            return answer
        message = inert(answer.message)[:200]
        if answer.outcome in {Outcome.NOT_OFFERED, Outcome.BAD_QUESTION}:
            raise Unavailable("lattice-helper is older than the agent.")
        raise _KINDS.get(answer.outcome, InternalError)(f"lattice-helper: {message}.")


_KINDS: dict[Outcome, type[LatticeError]] = {
    Outcome.REFUSED: PermissionRefused,
    Outcome.BUSY: Unavailable,
}
