"""What every key service behind the port `SiteKeys` promises: in memory, a file, a token."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice.adapters.sitekeys.file import FileSiteKeys
from lattice.adapters.sitekeys.pkcs11 import Pkcs11SiteKeys, Token
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.site_keys import SiteKeys, WrappedKey
from tests.fakes.in_memory_site_keys import InMemorySiteKeys

pytestmark = pytest.mark.timeout(120)

SECRET = bytes(range(32))
BOUND = b"data key of lab/42"
MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/usr/lib64/softhsm/libsofthsm2.so",
)
MODULE = next((Path(each) for each in MODULES if Path(each).exists()), None)
PIN = "25800"


@dataclass
class Service:
    """A key service, and what an administrator does with it."""

    keys: Callable[[], SiteKeys]
    rotate: Callable[[str], Awaitable[None]]
    lose: Callable[[], None]
    """It is away from then on."""


def in_memory(_folder: Path, _patch: pytest.MonkeyPatch) -> Service:
    keys = InMemorySiteKeys("before")

    def lose() -> None:
        keys.away = True

    async def rotate(name: str) -> None:
        keys.rotate(name)

    return Service(lambda: keys, rotate, lose)


def in_file(folder: Path, _patch: pytest.MonkeyPatch) -> Service:
    path = folder / "site-keys"
    path.touch(0o600)

    async def rotate(name: str) -> None:
        with path.open("a") as file:
            file.write(f"{name} {secrets.token_hex(32)}\n")

    return Service(lambda: FileSiteKeys(path), rotate, path.unlink)


def in_token(folder: Path, patch: pytest.MonkeyPatch) -> Service:
    if MODULE is None or shutil.which("softhsm2-util") is None:
        pytest.skip("softhsm2 is not installed")
    tokens, pin = folder / "tokens", folder / "pin"
    tokens.mkdir()
    pin.write_text(f"{PIN}\n")
    configuration = folder / "softhsm2.conf"
    configuration.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\n")
    patch.setenv("SOFTHSM2_CONF", str(configuration))
    named, module = "first", MODULE
    pins = ("--so-pin", PIN, "--pin", PIN)
    subprocess.run(
        ("softhsm2-util", "--init-token", "--free", "--label", "site", *pins),
        check=True,
        capture_output=True,
        timeout=60,
    )

    def keys() -> Pkcs11SiteKeys:
        return Pkcs11SiteKeys(Token(module, "site", pin, named), within_s=60)

    async def rotate(name: str) -> None:
        nonlocal named
        await keys().create(name)
        named = name

    return Service(keys, rotate, lambda: shutil.rmtree(tokens))


SERVICES = {"memory": in_memory, "file": in_file, "token": in_token}


@pytest.fixture(params=SERVICES)
async def service(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Service:
    found = SERVICES[request.param](tmp_path, monkeypatch)
    await found.rotate("first")
    return found


async def test_a_wrapped_secret_unwraps_and_shows_nothing_of_it(service: Service) -> None:
    keys = service.keys()
    wrapped = await keys.wrap(SECRET, BOUND)
    again = await keys.wrap(SECRET, BOUND)
    assert wrapped.site_key == await keys.newest() == "first"
    assert SECRET not in wrapped.secret
    assert wrapped.secret != again.secret
    assert await service.keys().unwrap(wrapped, BOUND) == SECRET
    assert await service.keys().unwrap(again, BOUND) == SECRET


async def test_a_changed_or_foreign_wrapped_secret_is_refused(service: Service) -> None:
    keys = service.keys()
    wrapped = await keys.wrap(SECRET, BOUND)
    for at in (0, len(wrapped.secret) // 2, len(wrapped.secret) - 1):
        changed = bytearray(wrapped.secret)
        changed[at] ^= 1
        with pytest.raises(DataUnavailable):
            await keys.unwrap(WrappedKey("first", bytes(changed)), BOUND)
    for cut in (wrapped.secret[:-1], wrapped.secret[:5], b""):
        with pytest.raises(DataUnavailable):
            await keys.unwrap(WrappedKey("first", cut), BOUND)
    with pytest.raises(DataUnavailable):
        await keys.unwrap(wrapped, b"data key of lab/43")


async def test_after_a_rotation_the_new_key_wraps_and_the_old_one_unwraps(
    service: Service,
) -> None:
    before = await service.keys().wrap(SECRET, BOUND)
    await service.rotate("second")
    keys = service.keys()
    after = await keys.wrap(SECRET, BOUND)
    assert (before.site_key, after.site_key) == ("first", "second")
    assert await keys.unwrap(before, BOUND) == SECRET
    assert await keys.unwrap(after, BOUND) == SECRET
    with pytest.raises(DataUnavailable):
        await keys.unwrap(WrappedKey("second", before.secret), BOUND)


async def test_a_missing_key_or_service_is_an_error_with_a_hint(service: Service) -> None:
    keys = service.keys()
    wrapped = await keys.wrap(SECRET, BOUND)
    with pytest.raises(Unavailable, match="third") as missing:
        await keys.unwrap(WrappedKey("third", wrapped.secret), BOUND)
    assert missing.value.hint
    service.lose()
    for ask in (keys.wrap(SECRET, BOUND), keys.unwrap(wrapped, BOUND)):
        with pytest.raises(Unavailable) as away:
            await ask
        assert away.value.hint
        assert away.value.message.endswith(".")


async def test_a_token_that_hangs_is_given_up(tmp_path: Path) -> None:
    token = Token(tmp_path / "module.so", "site", tmp_path / "pin", "first")
    asleep = (sys.executable, "-c", "import time; time.sleep(600)")
    keys = Pkcs11SiteKeys(token, within_s=0.2, argv=asleep)
    with pytest.raises(Unavailable, match=r"does not answer within 0\.2 s"):
        await keys.wrap(SECRET, BOUND)


async def test_a_token_that_crashes_ends_no_server(tmp_path: Path) -> None:
    token = Token(tmp_path / "module.so", "site", tmp_path / "pin", "first")
    crash = (sys.executable, "-c", "import os; os.abort()")
    with pytest.raises(Unavailable, match="ended without an answer"):
        await Pkcs11SiteKeys(token, within_s=60, argv=crash).wrap(SECRET, BOUND)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
async def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "site-keys"
    path.write_text(f"first {secrets.token_hex(32)}\n")
    path.chmod(mode)
    with pytest.raises(Unavailable, match=f"mode {mode:04o}"):
        await FileSiteKeys(path).newest()


async def test_a_key_file_of_another_user_or_behind_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site-keys"
    path.write_text(f"first {secrets.token_hex(32)}\n")
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(Unavailable, match="can't be read"):
        await FileSiteKeys(link).newest()
    os.chown(path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(Unavailable, match="belongs to uid 12345"):
        await FileSiteKeys(path).newest()


@pytest.mark.parametrize(
    "content", ["", "first\n", "first 00\n", "first " + "0" * 63 + "g\n", "a" * 70_000]
)
async def test_a_key_file_that_is_malformed_is_refused_and_not_quoted(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "site-keys"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(Unavailable) as refused:
        await FileSiteKeys(path).newest()
    assert "0000" not in refused.value.message
