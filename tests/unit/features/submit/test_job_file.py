"""A job file: what it may hold, and what is said of one that can't be used."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.features.submit.job_file import LARGEST_BYTES, read_job_file

WHOLE = """\
script: train.sh
arguments: [--epochs, "3"]
environment:
  uenv: prgenv-gnu/24.11:v1
  view: default
  tools_uenv: /images/tools.squashfs
nodes: 2-4
walltime: 1:30:00
gpus: a100:8
vcluster: batch
project: research
name: no
array: 1-10%2
depends_on: [5:success, 6]
labels: {run: 0x10, when: 2026-11-19}
output: out-%j.txt
chdir: /work
env: {OMP_NUM_THREADS: 010}
sbatch: [--exclusive, --mem 4G]
"""


def written(folder: Path, text: str) -> str:
    file = folder / "job.yaml"
    file.write_text(text)
    return str(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as error:
        read_job_file(written(folder, text))
    return error.value.message


@pytest.mark.spec("ALLOC-3", "ALLOC-5")
def test_every_value_is_the_text_that_was_written(tmp_path: Path) -> None:
    job = read_job_file(written(tmp_path, WHOLE))
    assert job.script == tmp_path / "train.sh"
    assert job.arguments == ("--epochs", "3")
    assert (job.environment.uenv, job.environment.view) == ("prgenv-gnu/24.11:v1", "default")
    assert job.environment.tools_uenv == "/images/tools.squashfs"
    assert (job.nodes, job.walltime, job.gpus, job.array) == ("2-4", "1:30:00", "a100:8", "1-10%2")
    assert (job.vcluster, job.project, job.name) == ("batch", "research", "no")
    assert job.depends_on == ("5:success", "6")
    assert job.labels == {"run": "0x10", "when": "2026-11-19"}
    assert (job.output, job.chdir, job.env) == ("out-%j.txt", "/work", {"OMP_NUM_THREADS": "010"})
    assert job.sbatch == ("--exclusive", "--mem 4G")


@pytest.mark.spec("ALLOC-3")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("script: a\nnods: 2\n", "job.yaml:2: nods: is not known here; did you mean nodes?"),
        ("script: a\nenvironment: {uenvs: x}\n", "did you mean uenv?"),
        ("nodes: 2\n", "has neither of `script` and `command`"),
        ("script: a\ncommand: b\n", "has both of `script` and `command`"),
        ("command: a\narguments: [b]\n", "belong to a script"),
        ("script: a\nscript: b\n", "stands twice"),
        ("script: a\nnodes: [1]\n", "must be text, not a list"),
        ("script: a\ndepends_on: 5\n", "must be a list"),
        ("script: a\nenv: x\n", "must hold keys and values"),
        ("script: !!python/object/apply:os.system [id]\n", "the tag"),
        ("[" * 100_000, "nested too deeply"),
        ("a: &a x\nb: [" + "*a," * 100 + "]", "too many aliases"),
        ("script: a\n<<: {nodes: 2}\n", "merge keys are not read"),
        ("- script: a\n", "must hold keys and values"),
        ("a: b: c\n", "job.yaml:1:5: "),
        ("x" * (LARGEST_BYTES + 1), "no file of at most"),
    ],
    ids=range(16),
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text)


def test_aliases_of_aliases_do_not_grow(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 7)]
    message = refused(tmp_path, "\n".join(("a0: &a0 lol", *levels, "sbatch: *a6\n")))
    assert "is not known here" in message
    assert len(message) < 4000


@pytest.mark.parametrize("name", ["missing.yaml", ".", "nul\0"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        read_job_file(f"{tmp_path}/{name}")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, errors="replace")
    with suppress(UsageError):
        read_job_file(str(file))
