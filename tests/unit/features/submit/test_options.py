"""A request as sbatch's options: what is named, what the script says itself, what can't be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.labels import read_comment
from lattice.domain.sbatch import script_options, short_options
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.submit.model import SubmitRequest
from lattice.features.submit.service.options import (
    job_name,
    sbatch_options,
    slurm_time,
)

VIEWS = Vclusters(
    (
        Vcluster("hpc", VclusterKind.HPC, "batch"),
        Vcluster("night", VclusterKind.SERVICE, "batch", "low"),
        Vcluster("clinic", VclusterKind.SENSITIVE, "vault"),
        Vcluster("secret", VclusterKind.SENSITIVE, "batch", "high"),
    )
)


def options(key: str = "", script: str = "#!/bin/sh\n", **asked: Any) -> tuple[str, ...]:
    return sbatch_options(SubmitRequest(script=script, **asked), VIEWS, key)


def test_nothing_asked_is_nothing_said() -> None:
    assert options() == ()


@pytest.mark.spec("ALLOC-3")
def test_each_option_has_its_word() -> None:
    assert options(
        nodes="2-4", walltime="1h30m", gpus="a100:8", project="research", name="n", array="1-3%2",
        output="o-%j", vcluster="night", depends_on=("5:success", "6_1:failure", "7+1:any", "8"),
        options=("--exclusive", "-C", "a100"),
    ) == (
        "--nodes=2-4", "--time=90", "--gpus=a100:8", "--account=research", "--job-name=n",
        "--array=1-3%2", "--output=o-%j", "--partition=batch", "--qos=low",
        "--dependency=afterok:5,afternotok:6_1,afterany:7+1,afterok:8", "--exclusive", "-C", "a100",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "slurm"),
    [
        ("30", "30"),
        ("1-12:00", "1-12:00"),
        ("02:30:00", "02:30:00"),
        ("UNLIMITED", "UNLIMITED"),
        ("90s", "2"),
        ("2h", "120"),
        ("1d", "1440"),
    ],
)
def test_times(text: str, slurm: str) -> None:
    assert slurm_time(text) == slurm


def test_a_job_is_named_after_its_script_unless_something_names_it() -> None:
    assert options(file="/home/a/train me.sh") == ("--job-name=train_me.sh",)
    for named in (
        {"script": "#!/bin/sh\n#SBATCH -J x\n"},
        {"script": "#!/bin/sh\n#SBATCH -Jx\n"},
        {"script": "#!/bin/sh\n# word\n\n#SBATCH -N2 --job-name=x\n"},
        {"script": "#!/bin/sh\n#SBATCH --job x\n"},
        {"options": ("--job-name", "x")},
    ):
        assert not [each for each in options(file="a.sh", **named) if "a.sh" in each]
    late = "#!/bin/sh\ntrue\n#SBATCH -J x\n"
    assert options(file="a.sh", script=late) == ("--job-name=a.sh",)


@given(st.text(max_size=80))
def test_a_name_from_a_file_is_plain(file: str) -> None:
    name = job_name(file)
    assert len(name) <= 64
    assert name.isascii()
    assert not name.startswith("-")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")


@pytest.mark.spec("ALLOC-3")
def test_labels_and_the_key_go_into_the_comment() -> None:
    (comment,) = options(key="ab" * 16, labels={"run": "7"})
    marks = read_comment(comment.removeprefix("--comment="))
    assert (dict(marks.labels), marks.key) == ({"run": "7"}, "ab" * 16)


@pytest.mark.threat("profile-gate")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"labels": {"a": "b"}, "options": ("--comment=x",)}, "comment of your own"),
        ({"labels": {"a": "b"}, "script": "#!/bin/sh\n#SBATCH --comm x\n"}, "comment of your own"),
        ({"labels": {"a b": "c"}}, "can't name a label"),
        ({"vcluster": "moon"}, "no vCluster"),
        ({"depends_on": ("x:any",)}, "not an allocation id"),
        ({"depends_on": ("5:never",)}, "no dependency"),
        ({"depends_on": ("5@100:any",)}, "no dependency"),
        ({"options": ("script.sh",)}, "no option of sbatch"),
        ({"options": ("--x", "--")}, "is empty"),
        ({"options": ("-W",)}, "can't be passed on"),
        ({"options": ("--wait",)}, "can't be passed on"),
        ({"script": "#!/bin/sh\n#SBATCH --wait\n"}, "can't be passed on"),
        ({"options": ("-Mall",)}, "can't be passed on"),
        ({"options": ("-HW",)}, "can't be passed on"),
        ({"options": ("-QHW",)}, "can't be passed on"),
        ({"options": ("-HMall",)}, "can't be passed on"),
        ({"options": ("-J", "-W")}, "can't be passed on"),
        ({"options": ("--comment", "-J", "-W")}, "can't be passed on"),
        ({"options": ("-zW",)}, "no option of it"),
        ({"options": ("-H\u00e4W",)}, "no option of it"),
        ({"script": "#!/bin/sh\n#SBATCH -HW\n"}, "can't be passed on"),
        ({"script": "#!/bin/sh\n#SBATCH -N2 -vW\n"}, "can't be passed on"),
        ({"options": ("--wrap=x",)}, "can't be passed on"),
        ({"walltime": "soon"}, "length of time"),
    ],
)
def test_what_can_not_be_asked(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options(**asked)


@pytest.mark.spec("ALLOC-3")
def test_a_comment_of_ones_own_is_ones_own() -> None:
    assert options(options=("--comment=x", "--wait-all-nodes=1")) == (
        "--comment=x",
        "--wait-all-nodes=1",
    )


@pytest.mark.spec("ALLOC-3")
@pytest.mark.parametrize(
    ("word", "letters"),
    [
        ("-HW", "HW"),
        ("-HJWait", "HJ"),
        ("-JW", "J"),
        ("-N2", "N"),
        ("-koff", "k"),
        ("-Hz", "Hz"),
        ("--wait", ""),
        ("-5", ""),
        ("-", ""),
        ("W", ""),
    ],
)
def test_short_options_are_read_as_sbatch_reads_them(word: str, letters: str) -> None:
    assert short_options(word) == letters


@pytest.mark.spec("ALLOC-3")
def test_a_letter_within_a_value_is_no_option() -> None:
    words = ("-HJWaitForMe", "-pWest", "-C", "a100", "-t5", "-koff")
    assert options(options=words) == words


def test_a_scripts_own_words() -> None:
    head = '#!/bin/sh\n#SBATCH -J "a b" --x # not this\n#comment\n\n  \n'
    script = head + "#SBATCH --y=1\ntrue\n#SBATCH -z"
    assert script_options(script) == ("-J", "a b", "--x", "--y=1")
    assert script_options("#SBATCH --open 'quote") == ("--open", "'quote")


@given(st.text())
def test_any_script_can_be_looked_at(script: str) -> None:
    script_options(script)


@pytest.mark.spec("AUDIT-1")
def test_sensitive_work_runs_in_the_reservations_of_claims() -> None:
    request = SubmitRequest(script="#!/bin/sh\n#SBATCH --reservation=other\n", vcluster="clinic")
    made = sbatch_options(request, VIEWS, "", ("lattice-claim-1", "lattice-claim-2"))
    assert made == ("--partition=vault", "--reservation=lattice-claim-1,lattice-claim-2")


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize(
    "words",
    [
        ("--reservation=other",),
        ("--res", "other"),
        ("-p", "batch"),
        ("-pbatch",),
        ("--partition=batch",),
        ("-Hq", "high"),
    ],
    ids=" ".join,
)
def test_nothing_leads_sensitive_work_elsewhere(words: tuple[str, ...]) -> None:
    request = SubmitRequest(script="#!/bin/sh\n", vcluster="clinic", options=words)
    with pytest.raises(UsageError, match="can't go with a vCluster for sensitive work"):
        sbatch_options(request, VIEWS, "", ("lattice-claim-1",))


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize(
    ("words", "script"),
    [
        (("-p", "vault"), ""),
        (("-pvault",), ""),
        (("-Hpvault",), ""),
        (("--partition=batch,vault",), ""),
        (("--part", "vault"), ""),
        (("-p", "batch", "-q", "high"), ""),
        ((), "#SBATCH -p vault"),
        ((), "#SBATCH --partition=vault"),
        (("--qos=high",), "#SBATCH --partition batch"),
    ],
)
def test_a_partition_for_sensitive_work_takes_its_vcluster(
    words: tuple[str, ...], script: str
) -> None:
    with pytest.raises(UsageError, match="is for sensitive work"):
        options(script=f"#!/bin/sh\n{script}\n", options=words)


@pytest.mark.parametrize(
    "words", [("-p", "batch"), ("--partition=batch", "--qos=low"), ("-p", "other"), ()]
)
def test_other_partitions_are_chosen_as_before(words: tuple[str, ...]) -> None:
    assert options(options=words) == words
