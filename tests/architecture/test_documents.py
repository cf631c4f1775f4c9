"""Documents that lie fail the build: links lead somewhere, tables are whole, the house is clean."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from lattice.base.errors import STATUS
from scripts.site import FENCED, LINK, anchor
from tests.fakes.server import composed

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not {".venv", "node_modules", ".git"}.intersection(page.relative_to(ROOT).parts)
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    found: set[str] = set()
    for heading in _HEADING.findall(FENCED.sub("", page.read_text())):
        made = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        found.add(made if made not in found else f"{made}-1")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link, part in LINK.findall(FENCED.sub("", page.read_text())):
        target = page.parent / link if link else page
        if not target.exists():
            lost.append(link)
        elif part and target.suffix == ".md" and part not in anchors(target):
            lost.append(f"{link}#{part}")
    assert lost == []


def test_every_page_of_the_documents_is_in_their_index() -> None:
    index = ROOT / "docs/index.md"
    named = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text())}
    pages = {
        each
        for each in (ROOT / "docs").rglob("*.md")
        if each != index and each.parent.name != "adr"
    }
    assert sorted(each.name for each in pages - named) == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_error_stands_in_its_table() -> None:
    table = (ROOT / "docs/reference/errors.md").read_text()
    for kind, status in STATUS.items():
        row = rf"\| `{kind.code}` \| .* \| {status.http} \| {status.grpc} \| {status.exit} \|"
        assert re.search(row, table), kind


@pytest.mark.spec("CLI-2")
def test_exit_codes_are_those_promised() -> None:
    promised = {
        "usage": 2,
        "login_required": 4,
        "unavailable": 75,
        "data_unavailable": 76,
        "permission_refused": 77,
        "configuration": 78,
        "job_ended": 79,
        "rate_limited": 80,
        "conflict": 81,
        "not_found": 102,
        "internal": 1,
    }
    assert {kind.code: status.exit for kind, status in STATUS.items()} == promised


def test_every_route_is_described() -> None:
    async def described() -> set[tuple[str, str]]:
        return set(composed().routes.rpc_of_route)

    reference = (ROOT / "docs/reference/rest.md").read_text()
    for method, path in asyncio.run(described()):
        shown = path.removeprefix("/api") if path.startswith("/api/v1") else path
        assert f"`{method} {shown}`" in reference, path


def test_nothing_names_a_machine_or_an_index() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    banned = re.compile(
        "|".join(("/wo" + "rk/", "pypi" + r"\.", "files.python" + "hosted", "registry.npm" + "js"))
    )
    found = [
        name
        for name in tracked
        if (file := ROOT / name).is_file()
        and banned.search(file.read_bytes().decode("utf-8", "ignore"))
    ]
    assert found == []
