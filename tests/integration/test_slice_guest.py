"""The agent reads the guest of a slice over real SSH: in a network namespace, and in a VM.

The stories are the same. One boot serves all of the VM: software emulation makes it slow.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.gpus import DRIVER_NOT_LOADED, uuid_of
from lab.slice_guest import NamespaceGuest, SliceGuest, running_guest
from lab.slice_vm import VirtualGuest
from lattice.adapters import guest_ssh
from lattice.adapters.guest_ssh import GuestAddress, GuestUnavailable, SshGuest
from lattice.agent.sections import SliceSection
from lattice.agent.slices import INVALID, SliceParts, SliceReader
from lattice.base.clock import SystemClock
from lattice.base.portable import guest_program
from lattice.domain.guest_report import CARD_LOST, GuestNic, read_report
from lattice.domain.metric import CATALOGUE, Absence, MetricReading, Provenance, Sample
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root"),
    pytest.mark.skipif(
        shutil.which("sshd") is None or shutil.which("cc") is None,
        reason="needs sshd and a C compiler",
    ),
]
GIB = 2**30
JOB = NodeJob(identity=JobIdentity("host", 7, 7, 1.7e9), started_by=StartSign.FOLDER)
IN_NAMESPACE = pytest.param(NamespaceGuest, id="namespace")
IN_VM = pytest.param(VirtualGuest, id="vm", marks=[pytest.mark.vm, pytest.mark.timeout(600)])


@pytest.fixture(scope="module", params=[IN_NAMESPACE, IN_VM])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SliceGuest]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    number = int(worker.removeprefix("gw")) if worker.removeprefix("gw").isdigit() else 40
    kind: type[SliceGuest] = request.param
    with running_guest(kind(tmp_path_factory.mktemp("guest"), f"sg-{worker}", number)) as guest:
        yield guest


@pytest.fixture
def guest(running: SliceGuest) -> Iterator[SliceGuest]:
    running.nvml.begin()
    yield running
    running.thaw()
    running.plug()
    running.before_program = ""
    running.restart()


@pytest.fixture
def pretender(guest: SliceGuest) -> Iterator[NamespaceGuest]:
    """A guest that can show the kernel of its host."""
    assert isinstance(guest, NamespaceGuest)
    yield guest
    guest.has_own_kernel = True


def section(guest: SliceGuest, timeout_s: float = 0.0) -> SliceSection:
    return SliceSection(
        name="s1",
        gpus=(0,),
        address=guest.address,
        host_key=guest.host_key,
        key_file=guest.key_file,
        user="root",
        timeout_s=timeout_s or guest.answers_within_s,
    )


class Host:
    """The agent's parts that read slices, over a host whose probes would lie."""

    def __init__(self, section: SliceSection, folder: Path, held: Sequence[str] = ()) -> None:
        self.parts = SliceParts((section,), folder, lambda: held, SystemClock())
        self.reader = SliceReader(self.parts, lambda _: (0,), self._host_values)

    async def _host_values(
        self, _: Sequence[NodeJob]
    ) -> dict[JobIdentity, tuple[MetricReading, ...]]:
        raise AssertionError("a job in a slice is never read on the host")

    async def readings(self) -> tuple[MetricReading, ...]:
        return (await self.reader.read((JOB,)))[JOB.identity]


async def readings(
    guest: SliceGuest, folder: Path, held: Sequence[str] = (), timeout_s: float = 0.0
) -> tuple[MetricReading, ...]:
    return await Host(section(guest, timeout_s), folder, held).readings()


def samples(found: Sequence[MetricReading]) -> dict[str, float]:
    return {each.metric: each.value for each in found if isinstance(each, Sample)}


def reason(found: Sequence[MetricReading], metric: str = "gpu_utilization_percent") -> Absence:
    (absence,) = [each for each in found if each.metric == metric]
    assert isinstance(absence, Absence)
    return absence


def processes(guest: SliceGuest) -> set[str]:
    """The processes on this machine that call this guest."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if guest.address.encode() in words:
            found.add(each.parent.name)
    return found


@pytest.mark.spec("SRC-3", "SLICE-1")
async def test_a_healthy_guest_is_measured_inside(guest: SliceGuest, tmp_path: Path) -> None:
    guest.nvml.card(0, utilization=41, power=250_000, temperature=55, memory_used=3 * GIB)
    found = await readings(guest, tmp_path)
    values = samples(found)
    assert values["gpu_utilization_percent"] == 41
    assert values["gpu_power_watts"] == 250
    assert values["gpu_temperature_celsius"] == 55
    assert values["gpu_memory_used_bytes"] == 3 * GIB
    assert values["memory_limit_bytes"] == guest.memory_bytes
    assert 0 < values["memory_used_bytes"] < guest.memory_bytes
    assert {"cpu_seconds_total", "network_rx_bytes_total"} < values.keys()
    taken = [each for each in found if isinstance(each, Sample)]
    assert {each.source for each in taken} == {Provenance.SLICE_GUEST}
    assert {each.label("gpu_uuid") for each in taken} == {"", uuid_of(0)}
    assert {each.metric for each in found} == set(CATALOGUE)


@pytest.mark.spec("SLICE-2")
async def test_the_first_reports_after_a_boot_have_the_facts_of_the_guest(
    guest: SliceGuest, tmp_path: Path
) -> None:
    guest.stop()
    host = Host(section(guest), tmp_path)
    silent = await host.parts.guests["s1"].answer()
    assert silent.report is None
    guest.start()
    host.parts.guests["s1"]._again_s = 0.0
    # The one after a call in vain has the times, the next one the facts of the machine.
    for _ in range(2):
        await host.parts.guests["s1"].answer()
    (found,) = host.parts.states()
    assert found.guest.start is not None
    facts = {each.name: each for each in found.guest.start.facts}
    assert found.guest.start.boot_id == guest.boot_id
    for name in ("reached_seconds", "answer_seconds", "driver_seconds", "vcpus", "root_disk_bytes"):
        assert facts[name].number, facts[name]
    assert facts["memory_bytes"].number == guest.memory_bytes, "of the guest, and not of the host"
    assert facts["network"].text.startswith("eth0 ")
    assert facts["hugepages"].text
    assert all(each.text or each.reason or each.number is not None for each in facts.values())
    again = Host(section(guest), tmp_path).parts.states()
    assert again[0].guest.start == found.guest.start, "a restarted agent has it"


@pytest.mark.spec("SLICE-1")
async def test_the_network_ports_of_the_guest_are_listed(guest: SliceGuest, tmp_path: Path) -> None:
    host = Host(section(guest), tmp_path)
    answer = await host.parts.guests["s1"].answer()
    assert answer.report is not None
    assert answer.report.report is not None
    (port,) = answer.report.report.nics
    assert isinstance(port, GuestNic)
    assert (port.name, port.kind, port.up) == ("eth0", "ethernet", True)
    assert port.rx_bytes


@pytest.mark.spec("SRC-2", "SRC-3", "SLICE-1")
async def test_a_lost_gpu_has_no_number_and_the_guest_still_has(
    guest: SliceGuest, tmp_path: Path
) -> None:
    guest.nvml.card(0, power="error:15")
    found = await readings(guest, tmp_path)
    assert reason(found).reason == CARD_LOST
    assert reason(found).last_error == "GPU is lost"
    assert not [each for each in samples(found) if each.startswith("gpu_")]
    assert samples(found)["memory_limit_bytes"] == guest.memory_bytes


@pytest.mark.spec("SRC-2", "SRC-3", "SLICE-1")
async def test_a_broken_driver_is_named_in_its_own_text(guest: SliceGuest, tmp_path: Path) -> None:
    guest.nvml.init_fails(DRIVER_NOT_LOADED)
    found = await readings(guest, tmp_path)
    assert reason(found).reason == guest_program.BROKEN
    assert reason(found).last_error == "Failed to initialize NVML: Driver Not Loaded"
    assert samples(found)["memory_limit_bytes"] == guest.memory_bytes


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_a_driver_that_hangs_loses_only_the_gpus(guest: SliceGuest, tmp_path: Path) -> None:
    guest.nvml.hang(30)
    found = await readings(guest, tmp_path)
    assert reason(found).reason == guest_program.BROKEN
    assert reason(found).last_error == "no answer in 1.5 s"
    assert samples(found)["memory_limit_bytes"] == guest.memory_bytes


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_an_ssh_server_that_hangs_is_named_and_nothing_stays(
    guest: SliceGuest, tmp_path: Path
) -> None:
    guest.freeze()
    found = await readings(guest, tmp_path, timeout_s=1.0)
    assert reason(found).reason == guest_ssh.SILENT.format(1.0)
    assert not samples(found)
    assert not processes(guest)


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_a_slow_program_is_told_apart_from_a_silent_server(
    guest: SliceGuest, tmp_path: Path
) -> None:
    guest.before_program = f"echo {guest_program.STARTED}; sleep 600"
    guest.restart()
    found = await readings(guest, tmp_path)
    assert reason(found).reason == guest_ssh.SLOW.format(guest.answers_within_s)
    assert not samples(found)
    assert not processes(guest)


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_a_changed_host_key_ends_the_conversation(guest: SliceGuest, tmp_path: Path) -> None:
    before = section(guest)
    guest.new_host_key()
    guest.restart()
    found = await Host(before, tmp_path).readings()
    assert reason(found).reason == guest_ssh.CHANGED
    assert not samples(found)


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_a_guest_without_a_link_is_unreachable(guest: SliceGuest, tmp_path: Path) -> None:
    guest.unplug()
    found = await readings(guest, tmp_path, timeout_s=1.0)
    assert reason(found).reason in {guest_ssh.UNREACHABLE, guest_ssh.SILENT.format(1.0)}
    assert not samples(found)


@pytest.mark.spec("SRC-2", "SLICE-1")
async def test_a_guest_without_sshd_is_named(guest: SliceGuest, tmp_path: Path) -> None:
    guest.stop()
    assert reason(await readings(guest, tmp_path)).reason == guest_ssh.REFUSED


@pytest.mark.spec("SLICE-1")
async def test_a_key_that_the_guest_does_not_know_is_named(
    guest: SliceGuest, tmp_path: Path
) -> None:
    other = replace(section(guest), key_file=guest.key_file.parent / "host_key")
    assert reason(await Host(other, tmp_path).readings()).reason == guest_ssh.REFUSED_KEY


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize("running", [IN_NAMESPACE], indirect=True)
async def test_a_report_of_the_host_itself_is_refused(
    pretender: NamespaceGuest, tmp_path: Path
) -> None:
    pretender.has_own_kernel = False
    pretender.restart()
    found = await readings(pretender, tmp_path)
    assert "boot id of the host" in reason(found).reason
    assert not samples(found)


@pytest.mark.spec("SRC-3")
async def test_a_card_that_the_host_serves_is_refused(guest: SliceGuest, tmp_path: Path) -> None:
    found = await readings(guest, tmp_path, held=[uuid_of(0)])
    assert "driver of the host serves this card" in reason(found).reason
    assert not [each for each in samples(found) if each.startswith("gpu_")]
    assert samples(found)["memory_limit_bytes"] == guest.memory_bytes


@pytest.mark.spec("SLICE-1")
async def test_an_endless_answer_is_cut(guest: SliceGuest, tmp_path: Path) -> None:
    guest.before_program = f"echo {guest_program.STARTED}; head -c 2000000 /dev/zero; exit"
    guest.restart()
    assert reason(await readings(guest, tmp_path)).reason == guest_ssh.TOO_LONG


@pytest.mark.spec("SLICE-1")
async def test_another_program_is_no_report(guest: SliceGuest, tmp_path: Path) -> None:
    guest.before_program = f"echo {guest_program.STARTED}; echo '{{}}'; exit"
    guest.restart()
    assert reason(await readings(guest, tmp_path)).reason == INVALID


@pytest.mark.spec("SLICE-1")
async def test_a_cancelled_call_leaves_no_process(guest: SliceGuest, tmp_path: Path) -> None:
    guest.freeze()
    host = Host(section(guest, timeout_s=9.0), tmp_path)
    reading = asyncio.create_task(host.readings())
    for _ in range(200):
        await asyncio.sleep(0.05)
        if processes(guest):
            break
    assert processes(guest)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await host.parts.guests["s1"].aclose()
    assert not processes(guest)


@pytest.mark.spec("SLICE-1")
async def test_the_key_can_do_nothing_but_report(guest: SliceGuest, tmp_path: Path) -> None:
    settings = section(guest)
    ssh = SshGuest(
        GuestAddress(
            name="s1",
            host=guest.address,
            port=22,
            user="root",
            key_file=guest.key_file,
            host_key=settings.host_key,
            timeout_s=guest.answers_within_s,
        ),
        tmp_path,
    )
    report = read_report(await ssh.report())
    assert report.boot_id == guest.boot_id
    words = ssh.arguments()
    process = await asyncio.create_subprocess_exec(
        *words[:-1], "cat", "/etc/shadow", stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert printed.startswith(guest_program.STARTED.encode())
    assert b"root:" not in printed


@pytest.mark.spec("SLICE-1")
async def test_a_missing_client_is_named(
    guest: SliceGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SshGuest, "arguments", lambda _, **__: ("no-such-program",))
    parts = Host(section(guest), tmp_path).parts
    with pytest.raises(GuestUnavailable) as caught:
        await parts.guests["s1"]._report(start=False)
    assert caught.value.reason == guest_ssh.NO_PROGRAM
