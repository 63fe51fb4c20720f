"""Finds NCCL or RCCL in a file that the library was linked into, where the file shows none of the library's functions.

An executable shows no function of a static library that it was linked with. A shared library shows none that are hidden. No
front door gets such calls, and no symbol tells of them. The library's texts do: they stand in the file's constants.
"""

from __future__ import annotations

from pathlib import Path

from . import _elf
from ._doors import DOORS, Door

__all__ = ["library_inside"]

# All of these stand in NCCL (2.19.3 and 2.32.3 were looked at) and in RCCL. Programs that use the library have some of them,
# such as variables that they set and errors that they know. Only the library has them all: it alone looks for an interface
# for its own bootstrap, and has the line that says its version. The line is one text with the version in it.
_TEXTS = (
    rb"NCCL_COMM_ID\0",
    rb"no socket interface found",
    rb"unhandled system error",
    rb"NCCL_TOPO_FILE",
    rb"\0[NR]CCL version (?:: )?[0-9]+\.[0-9]+\.[0-9]+",
)


def library_inside(file: Path, elf: _elf.Elf) -> Door | None:
    """The door of the library that was linked into a file without a trace in the file's symbols. None: there is no such."""
    if any(door.functions.match(name) for door in DOORS.values() for name in elf.wanted):
        return None  # the file takes functions from a library that the loader finds
    found = _elf.constants_with(file, _TEXTS)
    if not found:
        return None
    amd = found[-1].startswith(b"\0R") or any(need.startswith("libamdhip64") for need in elf.needed)
    return DOORS["rccl" if amd else "nccl"]
