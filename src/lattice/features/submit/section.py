"""The settings of lattice-server for images that Slurm mounts for whole jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.base.config import ConfigReport
from lattice.base.setting import setting
from lattice.features.submit.service.uenv import UenvPlugin

_OPTION = re.compile(r"--[a-z][a-z0-9-]{0,39}", re.ASCII)
_MOUNT = re.compile(r"/[A-Za-z0-9_./-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class UenvSection:
    image_option: str = setting(
        "",
        "The option of sbatch by which Slurm's plugin takes images: `--uenv`. Empty: the site has "
        "no such plugin, and `lattice submit --uenv` is refused.",
    )
    view_option: str = setting(
        "--view", "Its option for the views of an image. Empty: it has no views."
    )
    tools_option: str = setting(
        "",
        "Its option for an image of tools. Empty: the tools are one more image of `image_option`, "
        "mounted at `tools_mount`.",
    )
    tools_mount: str = setting("/user-tools", "Where an image of tools is mounted then.")

    @property
    def plugin(self) -> UenvPlugin:
        """The names for the feature."""
        return UenvPlugin(
            image_option=self.image_option,
            view_option=self.view_option,
            tools_option=self.tools_option,
            tools_mount=self.tools_mount,
        )


def judge_uenv(uenv: UenvSection, report: ConfigReport) -> None:
    """Report names that are no options, and a place that is none."""
    named = (
        ("uenv.image_option", uenv.image_option),
        ("uenv.view_option", uenv.view_option),
        ("uenv.tools_option", uenv.tools_option),
    )
    for path, option in named:
        if option and not _OPTION.fullmatch(option):
            report.problem(path, "must be a long option of sbatch, such as --uenv")
    given = [option for _, option in named if option]
    if len(set(given)) < len(given):
        report.problem("uenv.image_option", "is the same as another option of the plugin")
    if not _MOUNT.fullmatch(uenv.tools_mount):
        report.problem("uenv.tools_mount", "must be an absolute path")
