"""Builds a site from the documents: `just site`, into build/site. No page needs a network.

The pages are copied with the paths that they have here, so that every link between them holds.
mkdocs then checks links and anchors, and a dead one ends the build.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_LEFT_OUT = {".venv", "node_modules", ".git", "build", "dist", "tests", "changes", "lab", "src"}
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_NAMED = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#\s]+\.md)\)")


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as forges make it."""
    bare = re.sub(r"[^\w\- ]", "", heading.lower()).strip()
    return bare.replace(" ", separator)


def pages() -> list[Path]:
    """Every page, relative to the checkout."""
    found = (page.relative_to(ROOT) for page in ROOT.rglob("*.md"))
    return sorted(page for page in found if not _LEFT_OUT.intersection(page.parts))


def stage(folder: Path) -> None:
    """Copy pages, and the files that they link to."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        text = (ROOT / page).read_text()
        for link, _ in LINK.findall(FENCED.sub("", text)):
            target = (ROOT / page.parent / link).resolve()
            if target.is_dir():
                text = text.replace(f"]({link})", f"]({link.rstrip('/')}/index.md)")
                _list(folder / target.relative_to(ROOT), target)
            elif link and target.suffix != ".md":
                copy = folder / target.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, copy)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(indented(text))


def _list(copy: Path, folder: Path) -> None:
    """A page for a folder that is linked to."""
    copy.mkdir(parents=True, exist_ok=True)
    lines = [f"# {folder.name}", ""]
    for file in sorted(folder.iterdir()):
        if file.suffix == ".md":
            title = file.read_text().partition("\n")[0].lstrip("# ")
            lines.append(f"- [{title}]({file.name})")
        elif file.is_file():
            lines.append(f"- `{file.name}`")
    (copy / "index.md").write_text("\n".join(lines) + "\n")


def indented(text: str) -> str:
    """The text with lists as mkdocs reads them: four spaces a level, a blank line before."""
    lines: list[str] = []
    offsets: list[int] = []
    is_fenced = is_loose = False
    for line in text.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        before = lines[-1] if lines else ""
        if bare and not is_fenced:
            while offsets and indent < offsets[-1]:
                offsets.pop()
        shown = " " * 4 * len(offsets) + line[offsets[-1] if offsets else 0 :] if bare else ""
        if bare.startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and (item := _ITEM.match(bare)):
            begins = not offsets and not before.startswith(" ") and not _ITEM.match(before)
            if before and (begins or is_loose):
                lines.append("")
            is_loose = False
            offsets.append(indent + item.end())
        elif not bare:
            is_loose = bool(offsets)
        lines.append(shown)
    return "\n".join(lines) + "\n"


def nav() -> list[object]:
    """What the index names, by its sections; each page once."""
    index = (ROOT / "docs" / "index.md").read_text()
    parts = _SECTION.split(index)[1:]
    seen: set[str] = set()
    found: list[object] = [{"Lattice": "README.md"}, {"All pages": "docs/index.md"}]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        named = [
            {name: path}
            for name, path in _paths(body)
            if not (path in seen or seen.add(path))  # type: ignore[func-returns-value]
        ]
        found.append({title: named})
    return found


def _paths(body: str) -> Iterator[tuple[str, str]]:
    for name, link in _NAMED.findall(body):
        target = (ROOT / "docs" / link).resolve().relative_to(ROOT)
        yield name, target.as_posix()


def configuration(source: Path, out: Path) -> str:
    """For mkdocs, as YAML. JSON is YAML, but for the name of the function."""
    settings = {
        "site_name": "Lattice",
        "docs_dir": str(source),
        "site_dir": str(out),
        "use_directory_urls": False,
        "theme": {"name": "mkdocs", "highlightjs": False, "color_mode": "auto"},
        "validation": {
            "links": {
                "not_found": "warn",
                "anchors": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
            }
        },
        "nav": nav(),
        "markdown_extensions": ["tables", "sane_lists", "pymdownx.superfences", {"toc": "HERE"}],
    }
    slugify = '{"permalink": false, "slugify": !!python/name:scripts.site.anchor }'
    return json.dumps(settings, indent=1).replace('"HERE"', slugify)


def program() -> Path:
    """The Python of an environment with what requirements/site.txt names."""
    wanted = ROOT / "requirements" / "site.txt"
    folder = BUILD / "site-environment"
    mark = folder / "installed"
    if not mark.exists() or mark.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "-r", wanted], check=True)
        mark.write_text(wanted.read_text())
    return folder / "bin" / "python"


def fetched(site: Path) -> list[str]:
    """What pages would fetch from elsewhere; links that people follow do not count."""
    tag = re.compile(r"<(?:link|script|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]+\"")
    style = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+")
    found = []
    for file in site.rglob("*"):
        if file.suffix in {".html", ".css"}:
            pattern = tag if file.suffix == ".html" else style
            found += [
                f"{file.relative_to(site)}: {each}" for each in pattern.findall(file.read_text())
            ]
    return found


def main() -> int:
    """Build it; 1 if a link is dead, or a page fetches something."""
    source, out = BUILD / "site-source", BUILD / "site"
    stage(source)
    config = BUILD / "mkdocs.yml"
    config.write_text(configuration(source, out))
    argv = [program(), "-m", "mkdocs", "--quiet", "build", "--strict", "--clean", "-f", config]
    done = subprocess.run(
        argv, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, check=False
    )
    if done.returncode:
        return 1
    if found := fetched(out):
        print("\n".join(found), file=sys.stderr)
        return 1
    print(f"{out}/README.html" if (out / "README.html").exists() else f"{out}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
