"""Loading the eBPF program: whatever is wrong with it has a reason and harms nobody."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.helper import bpfload
from lattice.helper.bpfload import Refused, _loaded_by_a_child, load, room_for_jobs
from lattice.helper.latency import summed


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root's files are believed")
    file = tmp_path / "latency.bpf.o"
    file.write_bytes(b"no program")
    file.chmod(0o644)
    return file


@pytest.mark.spec("SRC-2")
def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the eBPF program is not installed$"):
        load(tmp_path / "none.o")


def test_a_program_that_others_can_change_is_not_loaded(program: Path) -> None:
    program.chmod(0o664)
    with pytest.raises(Refused, match="can't be trusted") as refused:
        load(program)
    assert "writable by root alone" in refused.value.last_error


def test_a_program_of_another_s_is_not_loaded(program: Path) -> None:
    os.chown(program, 65534, 65534)
    with pytest.raises(Refused, match="can't be trusted"):
        load(program)


@pytest.mark.spec("SRC-2")
def test_a_kernel_that_does_not_describe_itself(program: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^the kernel has no BTF$"):
        load(program, btf=tmp_path / "vmlinux")


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="could not be loaded"):
        load(tmp_path)


@pytest.mark.spec("SRC-2")
def test_what_is_no_program_is_refused_with_the_library_s_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(Refused) as refused:
        _loaded_by_a_child(b"no program at all", ())
    assert refused.value.reason.startswith(("the kernel refused: ", "libbpf.so.1 is not installed"))
    # gRPC of this process may write that it was forked.
    errors = capfd.readouterr().err.splitlines()
    assert [each for each in errors if "fork_posix" not in each] == []
    # Others may have closed some meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.spec("SRC-2")
def test_a_child_that_dies_over_it_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpfload, "_loaded", lambda *_: os.kill(os.getpid(), 9))
    with pytest.raises(Refused, match="loading the eBPF program failed"):
        _loaded_by_a_child(b"", ())


@pytest.mark.spec("SRC-2")
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpfload, "_LIBRARY", "libbpf.so.0.none")
    with pytest.raises(Refused, match=r"^libbpf\.so\.0\.none is not installed$"):
        _loaded_by_a_child(b"", ())


def test_half_an_answer_leaves_no_descriptor_open() -> None:
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    with pytest.raises(Refused, match="not all of it came"):
        bpfload._understood(json.dumps({"cpus": 2}).encode(), descriptors)
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)


@given(st.integers(1, 8192))
def test_the_table_of_jobs_stays_small_on_large_nodes(cpus: int) -> None:
    room = room_for_jobs(cpus)
    assert 64 <= room <= 256
    assert room == 64 or room * cpus <= 16_384


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8))
def test_copies_of_all_cpus_are_added_up(copies: list[tuple[int, int]]) -> None:
    raw = b"".join(struct.pack("=2Q", *copy) for copy in copies)
    assert summed(raw, 2) == tuple(map(sum, zip(*copies, strict=True)))
