"""Which jobs are sealed, and with what. Servers give that to the nodes of the job."""

from __future__ import annotations

from lattice.base.errors import PermissionRefused, Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.job_seal import JobSeal
from lattice.domain.sealed import BadSealed, open_object
from lattice.domain.sensitive import SensitiveWork
from lattice.foundation.data_keys import DataKeys, named


class JobSealing:
    """Answers by the views of now, and by the keys that were made before."""

    def __init__(
        self, keys: DataKeys | None = None, sensitive: SensitiveWork | None = None
    ) -> None:
        self._keys = keys
        self._sensitive = sensitive or SensitiveWork()

    async def of(self, allocation: Allocation) -> JobSeal | None:
        """The seal, its key made if necessary; None if the allocation is not sensitive.

        Raises `Unavailable` while the key service or the agreed state does not answer, and
        `DataUnavailable` for a key that was changed.
        """
        if self._sensitive.covers(allocation):
            if self._keys is None:
                raise Unavailable(
                    "This server has no keys for sensitive work.",
                    hint="An administrator sets sensitive.keys_file or sensitive.pkcs11_module.",
                )
            key, ref = await self._keys.key_of(allocation), named(allocation)
        elif self._keys is not None and await self._was_sealed(allocation.ref):
            key, ref = await self._keys.existing(allocation.ref), allocation.ref
        else:
            return None
        return JobSeal(key, await self._keys.cluster(), ref)

    async def _was_sealed(self, ref: str) -> bool:
        """True if there is a key: its vCluster was sensitive before."""
        assert self._keys is not None
        try:
            return await self._keys.is_sealed(ref)
        except Unavailable:
            return False


def opened_chunk(
    seal: JobSeal | None, node: str, kind: str, source: str, number: int, content: bytes
) -> bytes:
    """A chunk as a node sent it, without its seal. Raises `PermissionRefused`."""
    if seal is None:
        return content
    bound = seal.stream(node, kind, source).chunk(number)
    try:
        return open_object(seal.key, bound, content)
    except BadSealed as fault:
        raise PermissionRefused(
            f"The chunk is not sealed as its allocation needs: {fault}."
        ) from None
