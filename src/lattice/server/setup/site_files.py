"""The contents of the files that setup writes. Pure."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from lattice.server.setup.answers import OWN, Answers
from lattice.server.setup.site_paths import SitePaths
from lattice.server.setup.slurm_facts import SiteFacts

_HEAD = """# Written by `lattice-server setup`, which does not change it again. Check changes with
#   lattice-server --check-config
# /usr/share/doc/lattice-server/examples/production.yaml explains every option.

"""
REST_PORT, GRPC_PORT, AGENT_PORT, LANE_PORT = 8080, 50051, 50052, 50053


def server_config(answers: Answers, facts: SiteFacts, paths: SitePaths) -> str:
    """server.yaml."""
    sections: dict[str, Any] = {
        "api": _api(answers, paths),
        "identity": {
            name: str(paths.identity(name)) for name in ("ca_cert", "ca_key", "grant_key")
        },
        "slurm": _slurm(answers, facts, paths),
        "gate": {"socket": str(paths.gate_socket)},
        "vclusters": [
            {"name": each, "kind": "hpc", "partition": each} for each in facts.partitions
        ],
    }
    sections |= _engines(answers)
    return _HEAD + yaml.safe_dump(_plain(sections), sort_keys=False, width=100)


def _api(answers: Answers, paths: SitePaths) -> dict[str, Any]:
    host = answers.hosts[0]
    shown = f"[{host}]" if ":" in host else host
    return {
        "rest_listen": f"0.0.0.0:{REST_PORT}",
        "grpc_listen": f"0.0.0.0:{GRPC_PORT}",
        "agent_advertise": f"{shown}:{AGENT_PORT}",
        "tls_cert": str(answers.tls_cert or paths.tls_cert),
        "tls_key": str(answers.tls_key or paths.tls_key),
        "munge": answers.munge,
        "slurm_tokens": bool(answers.slurm_tokens),
        "slurm_tokens_url": _judge(answers, paths),
        "administrators": [answers.administrator] if answers.munge or answers.slurm_tokens else [],
        "oidc_issuer": answers.oidc_issuer,
        "oidc_client_id": answers.oidc_client_id,
        "oidc_audience": answers.oidc_audience,
    }


def _judge(answers: Answers, paths: SitePaths) -> str:
    return f"unix:{paths.judge_socket}" if answers.slurm_tokens == OWN else answers.slurm_tokens


def _slurm(answers: Answers, facts: SiteFacts, paths: SitePaths) -> dict[str, Any]:
    return {
        "rest_url": answers.slurmrestd or f"unix:{paths.rest_socket}",
        "bin_dir": facts.bin_dir,
        "config_file": facts.config_file,
    }


def _engines(answers: Answers) -> dict[str, Any]:
    if answers.is_single:
        return {}
    return {
        "quorum": {
            "endpoints": list(answers.etcd),
            "ca": answers.etcd_ca,
            "cert": answers.etcd_cert,
            "key": answers.etcd_key,
        },
        "objects": {
            "url": answers.objects,
            "endpoint": answers.objects_endpoint,
            "access_key_file": answers.objects_access_key_file,
            "secret_key_file": answers.objects_secret_key_file,
        },
        "telemetry": {
            "tsdb_endpoint": answers.tsdb,
            "tsdb_username": answers.tsdb_username,
            "tsdb_password_file": answers.tsdb_password_file,
        },
    }


def _plain(sections: dict[str, Any]) -> dict[str, Any]:
    """Without what was left open, and with paths as text."""
    plain_ones: dict[str, Any] = {}
    for name, value in sections.items():
        plain = _plain(value) if isinstance(value, dict) else value
        if plain not in (None, "", [], {}):
            plain_ones[name] = plain if isinstance(plain, bool | list | dict) else str(plain)
    return plain_ones


def client_config(answers: Answers, paths: SitePaths) -> str:
    """config.yaml, for everyone who runs `lattice` on this machine or has a copy."""
    host = answers.hosts[0]
    shown = f"[{host}]" if ":" in host else host
    lines = [f"api_url: https://{shown}:{REST_PORT}"]
    if answers.tls_cert is None:
        lines.append(f"ca: {paths.tls_authority}")
    return "".join(f"{each}\n" for each in lines)


def server_defaults(answers: Answers) -> str:
    """/etc/default/lattice-server."""
    single = f"--single {answers.state}" if answers.is_single else ""
    return f"OPTIONS={shlex.quote(single)}\n"


def gate_defaults(answers: Answers) -> str:
    """/etc/default/lattice-gate: what administrators may change in Slurm through the gate."""
    options = " ".join(f"--allow {each}" for each in answers.gate_allows)
    return f"OPTIONS={shlex.quote(options)}\n"


def slurmrestd_defaults(facts: SiteFacts, *, threads: int) -> str:
    """/etc/default/lattice-slurmrestd, and that with -jwt: where it is, and its threads."""
    lines = [f"SLURMRESTD={facts.slurmrestd}", f"OPTIONS='-t {threads}'"]
    if facts.config_file is not None:
        lines.append(f"SLURM_CONF={facts.config_file}")
    return "".join(f"{each}\n" for each in lines)
