"""Joining the folders of guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.helper.job_entry import _join


@pytest.mark.spec("ATTACH-1")
def test_a_folder_of_a_job_that_has_ended_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "step_extern"
    with pytest.raises(FileNotFoundError):
        _join(str(folder))
    assert not folder.exists()


@pytest.mark.spec("ATTACH-1")
def test_the_folder_of_guests_is_made_if_its_step_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _join(str(tmp_path / "gone" / "task_special"))
    with pytest.raises(FileNotFoundError):  # a folder of the kernel has the file at once
        _join(str(tmp_path / "task_special"))
    assert (tmp_path / "task_special").is_dir()
