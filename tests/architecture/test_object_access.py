"""The object store is reached by the server alone: no address of an object is ever signed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "lattice"
ADAPTER = SOURCES / "adapters" / "objects" / "s3.py"
_CALLS = {
    *("put_async", "get_async", "head_async", "delete_async"),
    *("list", "list_with_delimiter_async"),
}
"""What the adapter needs of obstore. `sign` and `sign_async` are not among them."""
_STORE = re.compile(r"^\s*(?:import|from) obstore\b", re.MULTILINE)
_CALL = re.compile(r"\bobstore\.([a-z_]+)\(")
_OTHER_CLIENTS = re.compile(
    r"^\s*(?:import|from) (?:boto|aiobotocore|minio|s3fs|aws_)", re.MULTILINE
)
_SIGNING = re.compile(
    r"presign|X-Amz-Signature|X-Amz-Credential|AWSAccessKeyId|sign_async", re.IGNORECASE
)
_ADDRESS = re.compile(r"^\s+\S*(url|href|presigned|endpoint)\S*:", re.IGNORECASE)
_TRUSTS_ANYBODY = re.compile(r"\bCERT_(?:NONE|OPTIONAL)\b|_create_unverified_context|verify=False")
_OPTION = re.compile(r"insecure|no-verify|skip-verify|trust-all|allow-http\b", re.IGNORECASE)


@cache
def sources() -> dict[Path, str]:
    return {file: file.read_text() for file in sorted(SOURCES.rglob("*.py"))}


def with_text(wanted: re.Pattern[str]) -> set[Path]:
    return {file for file, text in sources().items() if wanted.search(text)}


@pytest.mark.threat("signed-address")
def test_one_module_speaks_to_the_store_and_signs_no_address() -> None:
    assert with_text(_STORE) == {ADAPTER}
    assert set(_CALL.findall(ADAPTER.read_text())) == _CALLS
    assert "obstore.sign" not in ADAPTER.read_text()


@pytest.mark.threat("signed-address")
def test_no_other_client_of_a_store_and_no_word_of_a_signed_address() -> None:
    assert with_text(_OTHER_CLIENTS) == set()
    assert with_text(_SIGNING) == set()


@pytest.mark.threat("signed-address")
def test_no_answer_has_a_field_for_an_address() -> None:
    answers = (ROOT / "tests/golden/answers.txt").read_text().splitlines()
    assert [line for line in answers if _ADDRESS.search(line)] == []


@pytest.mark.threat("downgrade")
def test_no_program_can_be_told_to_trust_anybody() -> None:
    """What is served in plain text is the server's own setting, with a warning at each start."""
    for name in ("options", "help"):
        assert not _OPTION.search((ROOT / f"tests/golden/{name}.txt").read_text())
    assert with_text(_TRUSTS_ANYBODY) == set()
