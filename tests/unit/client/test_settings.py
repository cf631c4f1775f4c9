from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import ConfigurationError
from lattice.client.blocking_client import SyncClient
from lattice.client.settings import Settings, read_plain


def load(
    home: Path, text: str | None = None, flags: dict[str, str] | None = None, **env: str
) -> Settings:
    if text is not None:
        path = home / ".config/lattice/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Settings.load({"HOME": str(home), **env}, **(flags or {}))


@pytest.mark.spec("CLI-1")
def test_flags_stand_over_environment_over_file(tmp_path: Path) -> None:
    file = "api_url: https://file.example\nca: /file.pem\n"
    assert load(tmp_path, file).urls == ("https://file.example",)
    settings = load(tmp_path, None, LATTICE_API_URL="https://env.example", LATTICE_CA="/env.pem")
    assert (settings.urls, settings.ca) == (("https://env.example",), "/env.pem")
    flags = {"api_url": "https://flag.example", "ca": "/flag.pem"}
    settings = load(tmp_path, None, flags, LATTICE_API_URL="https://env.example", LATTICE_CA="/e")
    assert (settings.urls, settings.ca) == (("https://flag.example",), "/flag.pem")


def test_everything_a_file_can_say(tmp_path: Path) -> None:
    text = """
    api_url: "https://a.example:8443/lattice/, https://b.example"
    client_cert: /c.pem
    client_key: /k.pem
    output: json
    color: never
    scopes: [tenant:admin, "allocations:read"]
    credentials: keyring
    """
    found = load(tmp_path, text)
    assert found.urls == ("https://a.example:8443/lattice", "https://b.example")
    assert (found.client_cert, found.client_key) == ("/c.pem", "/k.pem")
    assert (found.output, found.color, found.credentials) == ("json", "never", "keyring")
    assert found.scopes == ("tenant:admin", "allocations:read")


@pytest.mark.spec("CLI-1")
def test_own_file_stands_over_the_site_file_key_by_key(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("api_url: https://site.example\nca: /site.pem\n")

    def loaded(text: str | None = None, **env: str) -> Settings:
        load(tmp_path, text or "api_url: https://own.example")
        return Settings.load({"HOME": str(tmp_path), **env}, site_file=str(site))

    found = Settings.load({"HOME": str(tmp_path / "nobody")}, site_file=str(site))
    assert (found.urls, found.ca) == (("https://site.example",), "/site.pem")
    found = loaded("output: wide\nca: /own.pem\napi_url: https://own.example")
    assert (found.urls, found.ca, found.output) == (("https://own.example",), "/own.pem", "wide")
    found = loaded(LATTICE_API_URL="https://env.example")
    assert (found.urls, found.ca) == (("https://env.example",), "/site.pem")
    (tmp_path / "other.yaml").write_text("output: json")
    found = loaded(LATTICE_CONFIG=str(tmp_path / "other.yaml"))
    assert (found.urls, found.output) == (("https://site.example",), "json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("api_url: site.example", "'site.example' is not a server's address"),
        ("api_ulr: https://x", "did you mean 'api_url'"),
        ("a: [", "line 1"),
        (None, "Is a directory"),
    ],
)
def test_a_bad_site_file_is_named_with_who_can_mend_it(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    site = tmp_path / "site.yaml"
    site.mkdir() if text is None else site.write_text(text)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        Settings.load({"HOME": str(tmp_path)}, site_file=str(site))
    assert str(site) in caught.value.message
    assert "administrator" in (caught.value.hint or "")


def test_places(tmp_path: Path) -> None:
    (tmp_path / "x/lattice").mkdir(parents=True)
    (tmp_path / "x/lattice/config.yaml").write_text("api_url: https://xdg.example")
    found = load(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "x"))
    assert found.urls == ("https://xdg.example",)
    assert found.folder == str(tmp_path / "x/lattice/credentials")
    (tmp_path / "own.yaml").write_text("api_url: https://own.example")
    assert load(tmp_path, LATTICE_CONFIG=str(tmp_path / "own.yaml")).urls == (
        "https://own.example",
    )
    with pytest.raises(ConfigurationError, match="does not exist"):
        load(tmp_path, LATTICE_CONFIG=str(tmp_path / "none.yaml"))


@pytest.mark.spec("CLI-2")
def test_no_server_says_where_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^No server is known\.$") as caught:
        load(tmp_path)
    assert "LATTICE_API_URL" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("api_ulr: https://x", "did you mean 'api_url'"),
        ("output: xml\napi_url: https://x", "output must be one of"),
        ("api_url: 7", "api_url must be text"),
        ("scopes: [1]", "list of words"),
        ("- a\n- b", "not a list of"),
        ("a: [", "line 1"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(tmp_path, text)


@pytest.mark.parametrize(
    "url",
    ["lattice.example", "ftp://x", "https://", "https://u:p@x", "https://x?y=1", "https://x:99999"],
)
def test_what_is_no_address(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a server's address"):
        load(tmp_path, LATTICE_API_URL=url)


def test_a_token_never_goes_unencrypted_to_another_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unencrypted"):
        load(tmp_path, LATTICE_API_URL="http://lattice.example")
    assert load(tmp_path, LATTICE_API_URL="http://127.0.0.1:8080").urls


values = st.sampled_from(
    [
        "https://a.example:8443",
        "https://[::1]:1/x",
        "/etc/ca.pem",
        "table",
        "yes",
        "12:30:45",
        "0x1F",
    ]
) | st.text(max_size=20)
lines = st.lists(st.tuples(st.sampled_from(["api_url", "ca", "output", "x"]), values), max_size=4)


@given(lines, st.sampled_from([": ", ":  ", ":", " : "]))
def test_the_quick_reading_says_what_yaml_says_or_nothing(
    pairs: list[tuple[str, str]], colon: str
) -> None:
    text = "".join(f"{key}{colon}{value}\n" for key, value in pairs)
    quick = read_plain(text)
    if quick is not None:
        assert quick == (yaml.safe_load(text) or {})


def test_the_quick_reading_reads_the_usual_file() -> None:
    text = "# mine\napi_url: https://lattice.example:8443\nca: /etc/lattice/ca.pem\noutput: wide\n"
    assert read_plain(text) == yaml.safe_load(text)


@pytest.mark.spec("TRY-3")
def test_local_needs_no_server_unless_one_is_named_nearer(tmp_path: Path) -> None:
    assert load(tmp_path, "local: true\n").local
    assert load(tmp_path).urls == ()
    named = load(tmp_path, LATTICE_API_URL="https://env.example")
    assert (named.local, named.urls) == (False, ("https://env.example",))
    both = Settings.load(
        {"HOME": str(tmp_path), "LATTICE_API_URL": "https://env.example"}, local=True
    )
    assert both.local
    assert not load(tmp_path, "local: false\napi_url: https://file.example\n").local


@pytest.mark.spec("TRY-3")
def test_an_own_server_is_nearer_than_the_sites_switch(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("local: true\n")

    def loaded(text: str) -> Settings:
        path = tmp_path / ".config/lattice/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return Settings.load({"HOME": str(tmp_path)}, site_file=str(site))

    assert loaded("output: json\n").local
    assert loaded("api_url: https://own.example\n").urls == ("https://own.example",)
    site.write_text("api_url: https://site.example\n")
    assert loaded("local: true\n").local


@pytest.mark.spec("TRY-3")
def test_the_sdk_needs_a_server_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="local: true"):
        SyncClient(load(tmp_path, "local: true\n"), environment={"HOME": str(tmp_path)})
