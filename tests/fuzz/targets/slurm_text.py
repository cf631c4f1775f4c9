"""What Slurm's programs print, and its notation for sets of nodes.

The first byte says which text the rest is; see `_PARSERS`.

- Any text gives a value or the documented `ValueError`; nothing else escapes.
- A set of nodes is never larger than the limit, and folding it loses and adds no node.
- Only a line feed ends a line: no field can add one.
- Every name and number stands in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lattice.adapters.slurm.accounts import parse_associations
from lattice.adapters.slurm.exit_codes import parse_exit_codes
from lattice.adapters.slurm.gres import gpus_of, indices_in
from lattice.adapters.slurm.job_details import parse_outputs
from lattice.adapters.slurm.operator import parse_admitted, parse_states
from lattice.adapters.slurm.schema.squeue import job_of
from lattice.adapters.slurm.tenancy import Placing
from lattice.adapters.slurm.topology import leaves, parse_topology
from lattice.domain.accounts import AccountTree
from lattice.domain.nodeset import LIMIT, NodeSet
from lattice.domain.operation import AllExcept
from lattice.domain.vcluster import Vclusters

TOKENS = (
    b"[",
    b"]",
    b",",
    b"-",
    b"n[1-3,07-12],gpu-[a,b]x[0-1]",
    b"[0-999]",
    b",0-999",
    b"[0-999999999999999999]",
    b"[1-2][3-4]",
    b"NodeName=n1 Arch=x State=IDLE+DRAIN* ",
    b"State=",
    b"Reason=",
    b"PartitionName=p AllowAccounts=a,b ",
    b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n",
    b"Switches=s[0-1]",
    b"   StdOut=/home/a/%j.out\n",
    b"   BatchHost=n1\n",
    b"1|lab|physics|alice\n",
    b"12|1700000000|1:0\n",
    b"gpu:a100:2(IDX:0-1)",
    b"(CNT:2)",
    b"\n",
    b"\r",
    b"\x0b",
    b"\x1c",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xd9\xa3",
    b"1_0",
    b"\0",
    b"|",
    b"N/A",
    b"1-02:03:04",
    b"%A_%a",
)
_PLACING = Placing("lab", AccountTree(), Vclusters())
_SMALL, _MANY = 64, 2048


def seeds() -> Iterable[bytes]:
    yield b"Nn[1-3,07-12],gpu-[a,b]x[0-1],login"
    yield b"Nn[098-101],n[8-11]"
    yield b"Sn1 NodeName=n2 State=IDLE"
    yield b"SNodeName=n1 Arch=x86_64 CPUTot=4 State=IDLE+DRAIN* Reason=State=DOWN\n"
    yield b"PPartitionName=p AllowGroups=ALL AllowAccounts=a,b Nodes=n1\n"
    yield (
        b"TSwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        b"SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]\n"
    )
    yield b"OJobId=7 JobName=a\n   BatchHost=n1\n   StdErr=/home/a/7.err\n   StdOut=/home/a/7.out\n"
    yield b"A1|lab|physics|alice\n2|lab|physics|\n3|other|x|bob\n"
    yield b"E12|1700000000|1:0\n13|1700000001|0:9\n"
    yield (
        b"Q"
        b"7|3|5|N/A|N/A|alice|RUNNING|1795119543|N/A|1795119544|N/A|N/A|10:00|1|1|1|0:0|0|n1|n1"
        b"\0None\0(null)\0a\0p\0q\0cpu=1,mem=1G,gres/gpu=1\0name\0c\0/d\0s.sh\0o-%j.txt\0(null)"
    )
    yield b"Ggpu:a100:2(IDX:0-1),gpu:h100:1(IDX:4),craynetwork:4"


def try_one(data: bytes) -> None:
    check = _PARSERS.get(data[:1])
    if check is not None:
        check(data[1:].decode("utf-8", "replace"))


def _nodes(text: str) -> None:
    for limit in (LIMIT, _SMALL):
        try:
            found = NodeSet.parse(text, limit=limit)
        except ValueError:
            continue
        assert len(found) <= limit
        if len(found) > _MANY:
            continue
        folded = found.fold()
        again = NodeSet.parse(folded, limit=limit)
        assert again == found, "folding lost or added a node"
        assert again.fold() == folded
        for name in list(found)[:_SMALL]:
            assert NodeSet.parse(name) == NodeSet([name])


def _states(text: str) -> None:
    for name in parse_states(text):
        assert any(line.startswith(f"NodeName={name} ") for line in text.split("\n"))


def _partitions(text: str) -> None:
    for name, accounts in parse_admitted(text).items():
        lines = [line for line in text.split("\n") if line.startswith(f"PartitionName={name} ")]
        assert lines
        names = accounts.denied if isinstance(accounts, AllExcept) else accounts
        for account in names or ():
            assert account
            assert any(account in line for line in lines)


def _topology(text: str) -> None:
    found = parse_topology(text)
    names = {switch.name for switch in found.switches}
    for switch in found.switches:
        assert any(f"SwitchName={switch.name}" in line for line in text.split("\n"))
        assert 0 <= switch.level <= 999
        assert len(switch.nodes) <= LIMIT
    assert set(leaves(found).values()) <= names
    assert len(found.switches) <= text.count("\n") + 1, "more switches than lines"


def _outputs(text: str) -> None:
    found = parse_outputs(text, 7)
    if found is None:
        return
    for path in found.files.values():
        assert path.startswith("/")
        assert "\n" not in path
        assert path in text
    assert found.host in text


def _associations(text: str) -> None:
    found = parse_associations(text, "lab")
    numbers = set(re.findall(r"[0-9]+", text))
    for user, ids in found.by_user.items():
        assert user
        assert f"|{user}" in text
        assert ids == tuple(sorted(set(ids)))
        known = {int(each) for each in numbers if len(each) <= 10}
        assert set(ids) <= known


def _exits(text: str) -> None:
    lines = set(text.split("\n"))
    shapes = {
        tuple(map(int, re.split(r"[|:]", line)))
        for line in lines
        if re.fullmatch(r"[0-9]{1,10}\|[0-9]{1,12}\|[0-9]{1,3}:[0-9]{1,3}", line)
    }
    for (job, submitted), code in parse_exit_codes(text):
        assert (job, submitted, code.code, code.signal) in shapes, "a line that is none"


def _gres(text: str) -> None:
    indices = indices_in(text)
    if indices:
        assert indices == tuple(sorted(set(indices)))
        assert "IDX:" in text
        assert indices[0] >= 0
        assert gpus_of("n1", [text])[0].indices == indices
    assert all(each.indices for each in gpus_of(text, [text, "gpu:1(IDX:0)"]))


def _rows(text: str) -> None:
    row = text.encode("utf-8", "replace")
    job = job_of((row,), _PLACING)
    if job is None:
        return
    assert str(job.job_id) == row.partition(b"|")[0].decode().lstrip("0")
    for each in (job.name, job.user, job.comment, job.nodes, job.account):
        assert each in text
        assert "\0" not in each


_PARSERS: dict[bytes, Callable[[str], None]] = {
    b"N": _nodes,
    b"S": _states,
    b"P": _partitions,
    b"T": _topology,
    b"O": _outputs,
    b"A": _associations,
    b"E": _exits,
    b"G": _gres,
    b"Q": _rows,
}
