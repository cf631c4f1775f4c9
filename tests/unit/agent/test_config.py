"""What an agent is told: by its file, by flags, by the environment."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.agent import config as agent_config
from lattice.agent.config import load_agent_config
from lattice.agent.main import _parser
from lattice.agent.sections import AgentConfig
from lattice.base.errors import ConfigurationError
from lattice.domain.joinkey import JoinKey, written

EVERY_OPTION = Path(__file__).parents[3] / "config" / "agent.yaml"


def told(text: str, tmp_path: Path, environ: dict[str, str] | None = None, **flags: Any) -> Any:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    return load_agent_config(file, flags, environ or {})


@pytest.mark.spec("OPS-7")
def test_the_file_with_every_option_is_sound_and_whole(tmp_path: Path) -> None:
    text = EVERY_OPTION.read_text()
    read = told(text, tmp_path)
    assert read.node == "n1"
    assert read.enrol_at == ("lattice1.example.com:50051", "lattice2.example.com:50051")
    assert read.link_to == ("lattice1.example.com:50052", "lattice2.example.com:50052")
    assert set(yaml.safe_load(text)) == {each.name for each in fields(AgentConfig)}


@pytest.mark.spec("OPS-7")
def test_the_flags_of_old_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent_config, "DEFAULT_FILE", tmp_path / "none")
    words = [
        *("--node-id=nid001234", "--quorum-endpoint=https://lattice-01:50051"),
        *("--bootstrap-cert=/c", "--bootstrap-key=/k", "--bootstrap-ca=/a"),
        *("--gpu-count=4", "--gpu-type=GH200", "--cpu-cores=72", "--memory-gb=512"),
    ]
    flags = vars(_parser().parse_args(words))
    for own in ("config", "check_config", "enrol", "grant_keys", "owner"):
        flags.pop(own)
    read = load_agent_config(None, flags, {"LATTICE_AGENT_TOKEN": "secret"})
    assert (read.node, read.enrol_at) == ("nid001234", ("lattice-01:50051",))
    assert read.link_to == ("lattice-01:50052",), "the port for agents is beside it"
    assert read.config.bootstrap.cert == Path("/c")
    expected = read.config.expected
    assert (expected.gpu_count, expected.gpu_type) == (4, "GH200")
    assert (expected.cpu_cores, expected.memory_gb) == (72, 512)
    assert read.agent_token == "secret"
    assert "secret" not in repr(read)


@pytest.mark.spec("OPS-7")
def test_the_environment_names_bootstrap_files(tmp_path: Path) -> None:
    environ = {
        "LATTICE_BOOTSTRAP_CERT": "/c", "LATTICE_BOOTSTRAP_KEY": "/k", "LATTICE_BOOTSTRAP_CA": "/a",
    }  # fmt: skip
    read = told("quorum_endpoint: [https://a]", tmp_path, environ)
    named = read.config.bootstrap
    assert (named.cert, named.key, named.ca) == (Path("/c"), Path("/k"), Path("/a"))


def test_a_flag_goes_before_the_file(tmp_path: Path) -> None:
    text = "{node_id: n1, quorum_endpoint: [https://a], bootstrap: {ca: /x}}"
    read = told(text, tmp_path, node_id="n2", bootstrap_ca=Path("/y"))
    assert read.node == "n2"
    assert read.config.bootstrap.ca == Path("/y")


def test_the_host_name_is_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "n7.cluster.example.com")
    assert told("quorum_endpoint: [https://a]", tmp_path).node == "n7"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://a", "a:50051"),
        ("a:9", "a:9"),
        ("http://a:9/", "a:9"),
        ("https://[::1]:9", "[::1]:9"),
        ("10.0.0.1", "10.0.0.1:50051"),
    ],
)
def test_addresses_may_be_written_in_several_ways(
    tmp_path: Path, address: str, expected: str
) -> None:
    assert told(f"quorum_endpoint: ['{address}']", tmp_path).enrol_at == (expected,)


@pytest.mark.spec("OPS-7")
def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    text = "{node_id: 'a/b', quorum_endpoint: ['ftp://x', 'https://a/path'], bootstrap: {key: /k}}"
    with pytest.raises(ConfigurationError) as refusal:
        told(text, tmp_path)
    problems = "\n".join(refusal.value.problems)
    for word in ("a/b", "ftp://x", "https://a/path", "go together", "names no server"):
        assert word in problems, problems


@pytest.mark.spec("AUTH-9")
def test_a_join_key_is_all_that_a_node_needs(tmp_path: Path) -> None:
    file = tmp_path / "join.key"
    file.write_text(written(JoinKey(servers=("s1:50051", "s2:50051"), token="secret", ca="CA")))
    read = told(f"node_id: n1\njoin_key_file: {file}\n", tmp_path)
    assert read.enrol_at == ("s1:50051", "s2:50051")
    assert read.link_to == ("s1:50052", "s2:50052")
    assert (read.join.token, read.join.ca) == ("secret", "CA")
    assert "secret" not in repr(read)
    own = told(
        f"node_id: n1\njoin_key_file: {file}\nquorum_endpoint: ['https://own:1']\n", tmp_path
    )
    assert own.enrol_at == ("own:1",), "what is set goes first"


@pytest.mark.spec("AUTH-9")
def test_a_join_key_that_is_none_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "join.key"
    file.write_text("a token alone")
    with pytest.raises(ConfigurationError) as refusal:
        told(f"join_key_file: {file}\n", tmp_path)
    assert any("is no join key" in each for each in refusal.value.problems)
    with pytest.raises(ConfigurationError) as refusal:
        told(f"join_key_file: {tmp_path / 'none'}\n", tmp_path)
    assert any("names no server" in each for each in refusal.value.problems)
