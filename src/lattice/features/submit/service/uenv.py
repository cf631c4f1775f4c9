"""The options of the site's uenv plugin for Slurm, which mounts images for a whole job. Pure.

Lattice passes the values on. The plugin finds the images, checks them and mounts them, and refuses
in its own words. Only what could be taken for something else is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.base.errors import UsageError
from lattice.features.submit.model import SubmitRequest

_LONGEST = 2048
_VALUE = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@%+=:,-]*", re.ASCII)
_MOUNTED = re.compile(r".+:/[^:,]*", re.ASCII)
_NO_PLUGIN = "This site's Slurm has no plugin that mounts a uenv for a job."
_NO_PLUGIN_HINT = (
    "`lattice attach --tools-uenv IMAGE` mounts one for a terminal. "
    "An administrator sets uenv.image_option where Slurm has such a plugin."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UenvPlugin:
    """What the plugin's options are called. Empty: it has no such option."""

    image_option: str = ""
    view_option: str = ""
    tools_option: str = ""
    tools_mount: str = ""
    """Where tools are mounted as one more image, if the plugin has no option for them."""


def uenv_options(request: SubmitRequest, plugin: UenvPlugin) -> tuple[str, ...]:
    """The options for `sbatch`. Raises `UsageError`."""
    uenv, view, tools = request.uenv, request.view, request.tools_uenv
    for name, value in (("--uenv", uenv), ("--view", view), ("--tools-uenv", tools)):
        _check(name, value)
    if not (uenv or view or tools):
        return ()
    if not plugin.image_option:
        raise UsageError(_NO_PLUGIN, hint=_NO_PLUGIN_HINT)
    if view and not uenv:
        raise UsageError("A view belongs to a uenv.", hint="Name it too: --uenv IMAGE --view NAME.")
    if view and not plugin.view_option:
        raise UsageError("This site's uenv plugin has no views.", hint="Leave --view out.")
    options = []
    if tools and not plugin.tools_option:
        uenv = ",".join(filter(None, (uenv, _mounted(tools, plugin.tools_mount))))
        tools = ""
    for option, value in (
        (plugin.image_option, uenv),
        (plugin.view_option, view),
        (plugin.tools_option, tools),
    ):
        if value:
            options.append(f"{option}={value}")
    return tuple(options)


def is_unknown_option(refusal: str, plugin: UenvPlugin) -> bool:
    """True if `sbatch` does not know an option of the plugin."""
    if "unrecognized option" not in refusal and "ambiguous" not in refusal:
        return False
    options = (plugin.image_option, plugin.view_option, plugin.tools_option)
    return any(each and f"'{each}" in refusal for each in options)


def _check(name: str, value: str) -> None:
    if not value:
        return
    if len(value) > _LONGEST:
        raise UsageError(f"The value of {name} is longer than {_LONGEST} characters.")
    if not _VALUE.fullmatch(value):
        raise UsageError(
            f"{name} can't be {value[:60]!r}.",
            hint="An image is a path or a label; a view is a name. Neither has blanks or quotes.",
        )


def _mounted(tools: str, mount: str) -> str:
    """The image of tools with its mount point, unless the caller named one."""
    if "," in tools:
        raise UsageError("--tools-uenv takes one image.", hint="Give others with --uenv.")
    return tools if _MOUNTED.fullmatch(tools) else f"{tools}:{mount}"
