from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lattice.base.errors import ConfigurationError, LoginRequired, Unavailable
from lattice.client.credential import Credential
from lattice.client.credentials import CredentialFolder
from lattice.client.tokens import StoredTokens
from lattice.domain.signin import GrantRefused, Tokens


@pytest.fixture
def folder(tmp_path: Path) -> CredentialFolder:
    return CredentialFolder(str(tmp_path / "credentials"), "https://lattice.example:8443")


def credential(token: str = "a1", end: float | None = None) -> Credential:
    return Credential(token, expires_at=end, issuer="https://idp.example", client_id="lattice")


def paths(folder: CredentialFolder) -> list[str]:
    return sorted(path.name for path in Path(folder.path).parent.iterdir())


class Provider:
    """Renews each refresh token once; a second use is theft and ends everything."""

    def __init__(self, token: str = "r1") -> None:
        self.good = token
        self.count = 0
        self.lock = threading.Lock()
        self.failure: Exception | None = None
        self.pause_s = 0.0

    def __call__(self, kept: Credential, refresh: str) -> Tokens:  # noqa: ARG002
        time.sleep(self.pause_s)
        with self.lock:
            if self.failure is not None:
                raise self.failure
            if refresh != self.good:
                self.good = "none"
                raise GrantRefused("used twice")
            self.count += 1
            self.good = f"r{self.count + 1}"
            return Tokens(access=f"a{self.count + 1}", refresh=self.good, lifetime_s=600)


def stored(folder: CredentialFolder, provider: Provider) -> tuple[StoredTokens, list[str]]:
    warnings: list[str] = []
    return StoredTokens(folder, provider, warn=warnings.append), warnings


# Files


@pytest.mark.spec("AUTH-1")
def test_files_are_for_the_owner_alone_and_named_for_the_server(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    assert paths(folder) == ["lattice.example%3A8443.json", "lattice.example%3A8443.refresh"]
    for name in paths(folder):
        assert (Path(folder.path).parent / name).stat().st_mode & 0o777 == 0o600
    assert Path(folder.path).parent.stat().st_mode & 0o777 == 0o700


def test_servers_do_not_share(tmp_path: Path) -> None:
    names = ["https://a", "https://a:1", "http://a", "https://a/x", "https://a%2Fx"]
    folders = [CredentialFolder(str(tmp_path / "c"), name) for name in names]
    for number, each in enumerate(folders):
        each.save(credential(str(number)), None)
    assert [each.read().access_token for each in folders] == list("01234")  # type: ignore[union-attr]


A, B, C = "https://a", "https://b", "https://c"


@pytest.mark.spec("AUTH-1", "OPS-1")
@pytest.mark.parametrize("named", [(A, B), (B, A), (B,), (A,), (C, B), (C, A)])
def test_a_sign_in_is_the_clusters_whichever_replica_is_named_first(
    tmp_path: Path, named: tuple[str, ...]
) -> None:
    CredentialFolder(str(tmp_path / "c"), A, B).save(credential(), "r1")
    found = CredentialFolder(str(tmp_path / "c"), *named)
    assert found.read().access_token == "a1"  # type: ignore[union-attr]
    claim = CredentialFolder(str(tmp_path / "c"), *named).claim()
    assert claim is not None
    claim.finish(credential("a2"), "r2")
    assert CredentialFolder(str(tmp_path / "c"), A).read().access_token == "a2"  # type: ignore[union-attr]


@pytest.mark.spec("AUTH-1")
def test_another_cluster_has_no_part_in_it(tmp_path: Path) -> None:
    CredentialFolder(str(tmp_path / "c"), A, B).save(credential(), "r1")
    assert CredentialFolder(str(tmp_path / "c"), C).read() is None


@pytest.mark.spec("AUTH-1")
def test_signing_in_anew_and_out_is_for_all_replicas(tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    CredentialFolder(folder, A).save(credential("old"), "r0")
    CredentialFolder(folder, B).save(credential("older"), "r00")
    CredentialFolder(folder, B, A).save(credential("new"), None)
    assert [CredentialFolder(folder, each).read().access_token for each in (A, B)] == ["new"] * 2  # type: ignore[union-attr]
    assert not CredentialFolder(folder, A, B).renewable()
    CredentialFolder(folder, A).delete()
    assert CredentialFolder(folder, B).read() is None
    CredentialFolder(folder, A, B).delete()
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_that_others_may_read_is_refused(folder: CredentialFolder, mode: int) -> None:
    """Attack 26: the mode is checked at each read."""
    folder.save(credential(), None)
    assert folder.read() is not None
    Path(folder.path).chmod(mode)
    with pytest.raises(ConfigurationError, match="can be opened by others") as caught:
        folder.read()
    assert "chmod 600" in (caught.value.hint or "")


@pytest.mark.spec("AUTH-1")
def test_folder_that_others_may_open_is_refused(folder: CredentialFolder) -> None:
    folder.save(credential(), None)
    Path(folder.path).parent.chmod(0o755)
    with pytest.raises(ConfigurationError, match="can be opened by others"):
        folder.read()


@pytest.mark.spec("AUTH-1")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(folder: CredentialFolder) -> None:
    folder.save(credential(), None)
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        folder.read()


@pytest.mark.spec("AUTH-1")
def test_link_is_not_followed(folder: CredentialFolder, tmp_path: Path) -> None:
    folder.save(credential(), None)
    elsewhere = Path(folder.path).rename(tmp_path / "elsewhere")
    Path(folder.path).symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="Can't read"):
        folder.read()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"access_token": 1}'])
def test_damaged_file_is_said_to_be(folder: CredentialFolder, content: str) -> None:
    folder.save(credential(), None)
    Path(folder.path).write_text(content)
    with pytest.raises(ConfigurationError, match="damaged"):
        folder.read()


# Claims


def test_a_refresh_token_can_be_held_once(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    first = folder.claim()
    assert first is not None
    assert first.token == "r1"
    assert folder.claim() is None
    assert folder.renewable()
    first.give_back()
    second = folder.claim()
    assert second is not None
    second.finish(credential("a2"), "r2")
    assert not first.held()
    third = folder.claim()
    assert third is not None
    assert third.token == "r2"


def test_claim_of_a_dead_process_is_taken_over_at_once(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    code = (
        "import sys; from lattice.client.credentials import CredentialFolder as F;"
        f"assert F({str(Path(folder.path).parent)!r}, 'https://lattice.example:8443').claim()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len([name for name in paths(folder) if "~" in name]) == 1
    claim = folder.claim()
    assert claim is not None
    assert claim.token == "r1"


def test_claim_of_another_host_is_taken_over_when_it_is_old(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    other = f"{folder.refresh_path}.{socket.gethostname()}x~1~abcd"
    Path(folder.refresh_path).rename(other)
    assert folder.claim() is None, "it may still be at work"
    os.utime(other, (time.time() - 61,) * 2)
    claim = folder.claim()
    assert claim is not None
    assert claim.token == "r1"
    assert not Path(other).exists()


def test_a_pid_of_another_namespace_means_nothing(
    folder: CredentialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers with one name and one home: the other's pid must not be looked up here."""
    from lattice.client import credentials

    folder.save(credential(), "r1")
    monkeypatch.setattr(credentials, "_pid_namespace_id", lambda: "box-1234abcd-4026531836")
    claim = folder.claim()
    assert claim is not None
    dead = Path(claim._path).rename(claim._path.replace(f"~{os.getpid()}~", "~4194305~"))
    monkeypatch.setattr(credentials, "_pid_namespace_id", lambda: "box-1234abcd-4026532000")
    assert folder.claim() is None, "it may well be alive over there"
    monkeypatch.setattr(credentials, "_pid_namespace_id", lambda: "box-1234abcd-4026531836")
    assert folder.claim() is not None, "here it is known to be dead"
    assert not dead.exists()


def test_another_process_that_never_ends_is_said_to_be_at_it(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    claim = folder.claim()
    assert claim is not None
    clock = [time.time()]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    tokens = StoredTokens(
        folder, Provider(), warn=lambda _: None, now=lambda: clock[0], sleep=sleep
    )
    with pytest.raises(Unavailable, match="another process is at it"):
        tokens.token()
    assert claim.held()


def test_of_many_who_find_a_claim_stale_one_gets_it(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    other = f"{folder.refresh_path}.elsewhere~1~abcd"
    Path(folder.refresh_path).rename(other)
    os.utime(other, (time.time() - 3600,) * 2)
    start = threading.Barrier(8)
    found: list[object] = []

    def take() -> None:
        start.wait()
        found.append(folder.claim())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([claim for claim in found if claim is not None]) == 1


def test_damaged_refresh_token_is_no_token(folder: CredentialFolder) -> None:
    folder.save(credential(), "r1")
    Path(folder.refresh_path).write_text("{")
    assert folder.claim() is None
    assert not folder.renewable()


def test_new_sign_in_makes_a_renewal_under_way_void(folder: CredentialFolder) -> None:
    folder.save(credential("old"), "r1")
    claim = folder.claim()
    assert claim is not None
    folder.save(credential("new"), "n1")
    claim.finish(credential("late"), "r2")
    kept = folder.read()
    assert kept is not None
    assert kept.access_token == "new"
    after = folder.claim()
    assert after is not None
    assert after.token == "n1"


# Renewal


@pytest.mark.spec("AUTH-1")
def test_token_that_holds_is_used_as_it_is(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() + 3600), "r1")
    provider = Provider()
    assert stored(folder, provider)[0].token() == "a1"
    assert provider.count == 0


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("left_s", [-5, 0, 59])
def test_token_about_to_end_is_renewed(folder: CredentialFolder, left_s: float) -> None:
    folder.save(credential("a1", time.time() + left_s), "r1")
    tokens, warnings = stored(folder, Provider())
    assert tokens.token() == "a2"
    assert warnings == []
    kept = folder.read()
    assert kept is not None
    assert kept.access_token == "a2"
    assert paths(folder) == ["lattice.example%3A8443.json", "lattice.example%3A8443.refresh"]


@pytest.mark.spec("AUTH-1")
def test_many_threads_and_hosts_renew_once(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    provider = Provider()
    provider.pause_s = 0.05
    found: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(stored(folder, provider)[0].token()))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["a2"] * 12
    assert provider.count == 1


@pytest.mark.spec("AUTH-1")
def test_killed_in_the_middle_another_goes_on(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    claim = folder.claim()
    assert claim is not None
    dead = Path(claim._path).rename(f"{folder.refresh_path}.elsewhere~1~dead")
    os.utime(dead, (time.time() - 120,) * 2)
    assert stored(folder, Provider())[0].token() == "a2"


@pytest.mark.spec("AUTH-1")
def test_provider_that_does_not_rotate(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    tokens = StoredTokens(
        folder, lambda *_: Tokens(access="a2", lifetime_s=600), warn=lambda _: None
    )
    assert tokens.token() == "a2"
    claim = folder.claim()
    assert claim is not None
    assert claim.token == "r1"


@pytest.mark.spec("AUTH-1")
def test_refused_grant_asks_to_log_in_and_forgets_the_worthless_token(
    folder: CredentialFolder,
) -> None:
    folder.save(credential("a1", time.time() - 1), "stolen")
    with pytest.raises(LoginRequired, match="lattice login"):
        stored(folder, Provider())[0].token()
    assert not folder.renewable()


@pytest.mark.spec("AUTH-1")
def test_refused_grant_looks_once_more_for_a_newer_sign_in(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "old")

    def renew(kept: Credential, refresh: str) -> Tokens:
        folder.save(credential("other", time.time() + 600), "fresh")
        raise GrantRefused("used twice")

    assert StoredTokens(folder, renew, warn=lambda _: None).token() == "other"


@pytest.mark.spec("AUTH-1")
def test_provider_away_while_the_token_still_holds(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() + 30), "r1")
    provider = Provider()
    provider.failure = Unavailable("away")
    assert stored(folder, provider)[0].token() == "a1"
    claim = folder.claim()
    assert claim is not None, "given back for the next try"


def test_provider_away_and_the_token_at_its_end(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    provider = Provider()
    provider.failure = Unavailable("away")
    with pytest.raises(Unavailable):
        stored(folder, provider)[0].token()
    assert folder.renewable()


@pytest.mark.spec("AUTH-1")
def test_without_refresh_token_the_end_is_announced(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() + 100), None)
    tokens, warnings = stored(folder, Provider())
    assert tokens.token() == "a1"
    assert len(warnings) == 1
    assert "can't be renewed" in warnings[0]
    folder.save(credential("a1", time.time() - 1), None)
    with pytest.raises(LoginRequired):
        stored(folder, Provider())[0].token()


@pytest.mark.spec("AUTH-1")
def test_token_the_server_refused_is_replaced_once(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() + 3600), "r1")
    tokens, _ = stored(folder, Provider())
    assert tokens.renewed("a1") == "a2"
    assert tokens.renewed("a1") == "a2", "a newer one is there already"
    folder.save(credential("a3", time.time() + 3600), None)
    assert tokens.renewed("a3") is None


def test_nobody_signed_in(folder: CredentialFolder) -> None:
    tokens, _ = stored(folder, Provider())
    assert tokens.token() is None
    assert tokens.renewed("x") is None


@pytest.mark.spec("AUTH-1")
def test_no_token_is_left_in_temporary_files(folder: CredentialFolder) -> None:
    folder.save(credential("a1", time.time() - 1), "r1")
    stored(folder, Provider())[0].token()
    folder.delete()
    assert paths(folder) == []


def test_content_is_plain_json(folder: CredentialFolder) -> None:
    folder.save(credential("a1", 5.0), None)
    assert json.loads(Path(folder.path).read_text()) == {
        "access_token": "a1",
        "expires_at": 5.0,
        "issuer": "https://idp.example",
        "client_id": "lattice",
    }
