"""Pages of the manual, the bill of materials and the checksums of a release."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from lattice.cli.command_table import COMMANDS
from scripts.packaging.manual import completion, manual
from scripts.packaging.wheelhouse import bill_of_materials, checksums


def test_the_manual_has_every_command_and_no_broken_dash() -> None:
    page = manual("lattice")
    for name, _, _ in COMMANDS:
        assert f".SS lattice {name}".replace("-", "\\-") in page
    assert "\\-\\-api\\-url" in page


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("lattice-server", "\\-\\-check\\-config"),
        ("lattice-agent", "\\-\\-enrol"),
        ("lattice-helper", "\\-\\-grant\\-keys"),
    ],
)
def test_daemons_have_a_page_with_their_options(name: str, option: str) -> None:
    page = manual(name)
    assert page.startswith(f".TH {name.upper()} 8 ")
    assert option in page


def test_completion_names_the_program() -> None:
    assert "#compdef lattice" in completion("zsh")


def wheel(folder: Path, name: str, metadata: str) -> Path:
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
    return file


def test_the_bill_of_materials_names_versions_licences_and_checksums(tmp_path: Path) -> None:
    first = wheel(tmp_path, "one_part", "Name: one_part\nVersion: 1.0\nLicense-Expression: MIT\n")
    second = wheel(
        tmp_path,
        "two",
        "Name: two\nVersion: 1.0\nClassifier: License :: OSI Approved :: BSD License\n",
    )
    bill = json.loads(bill_of_materials([first, second], {"openssl": "3.5.7-1"}))
    found = {each["purl"]: each for each in bill["components"]}
    assert set(found) == {
        "pkg:pypi/one-part@1.0",
        "pkg:pypi/two@1.0",
        "pkg:deb/debian/openssl@3.5.7-1",
    }
    assert found["pkg:pypi/one-part@1.0"]["licenses"] == [{"license": {"name": "MIT"}}]
    assert found["pkg:pypi/two@1.0"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert found["pkg:pypi/two@1.0"]["properties"][0]["name"] == f"sha256:{second.name}"
    again = json.loads(bill_of_materials([second, first], {"openssl": "3.5.7-1"}))
    assert again == bill


def test_sha256sum_reads_the_checksums(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "more").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / "more" / "b").write_text("2")
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(checksums(folder))
    subprocess.run(["sha256sum", "--strict", "-c", sums], cwd=folder, check=True)
