"""`python -m tests.e2e.renew_certificate STATE_DIR NODE`: a new certificate for a node, kept there.

As an administrator's own tool would do it: the agent is not asked, and finds it when told to look.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from lattice.agent.certificates import LocalCertificates
from lattice.agent.identity_issuer import GrpcIssuer
from lattice.agent.identity_store import IdentityStore


async def renew(folder: Path, node: str) -> None:
    store = IdentityStore(folder, node, LocalCertificates())
    before = store.load()
    assert before is not None, "it has none yet"
    key, csr = store.new_request()
    given = await GrpcIssuer((), None).renew(before, before.replicas, csr)
    after = store.held(given, key, "renewal", believed=before.authorities)
    assert after.certificate != before.certificate
    store.save(after)


if __name__ == "__main__":
    asyncio.run(renew(Path(sys.argv[1]), sys.argv[2]))
