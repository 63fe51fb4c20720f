"""The front doors of the package, one for each vendor, and where the vendor's own library is on this machine.

A front door is a library with the name and the functions of a vendor's collective library. Its calls reach Isthmus first.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import _elf, _loader

__all__ = ["AUDITOR", "DOORS", "FOLDER", "HOOK", "NAMES", "Door", "door_of_file", "in_preload", "read"]

FOLDER = Path(__file__).resolve().parent / "interpose"
HOOK = FOLDER / "libisthmus_dlopen.so"
AUDITOR = FOLDER / "libisthmus_audit.so"
# A file's symbols are kept that begin with one of these: functions of the vendors, and functions that open libraries.
NAMES = (b"nccl", b"pnccl", b"Hccl", b"hccl", b"dlopen\0", b"dlmopen\0")


@dataclass(frozen=True)
class Door:
    """The front door of one vendor, and how that vendor's own library is recognized and found."""

    library: str  # the library's name for --vendor and ISTHMUS_INTERPOSE
    soname: str
    stem: str  # how the names of the vendor's files begin
    setting: str  # the setting with the path of the vendor's library
    functions: re.Pattern[str]  # how the names of the library's functions begin
    devices: str  # a pattern of files. A machine with the vendor's devices has such files
    packages: tuple[str, ...]  # folders that may hold the library, below a folder of Python packages
    folders: tuple[str, ...]  # folders that may hold the library, in the file system

    @property
    def name(self) -> str:
        return self.library.upper()

    @property
    def path(self) -> Path:
        return FOLDER / self.soname

    def is_name(self, name: str) -> bool:
        """Whether a file of this name is the vendor's library: the name is the stem, with or without a version behind."""
        return name == self.stem or name.startswith(f"{self.stem}.")

    def has_devices(self) -> bool:
        return bool(glob.glob(self.devices))

    def installed(self, environment: Mapping[str, str], packages: Sequence[str] = ()) -> Path | None:
        """The vendor's library that a program would find by itself. None: there is none.

        The order: folders of Python packages, LD_LIBRARY_PATH, the loader's cache, the usual folders. Front doors are
        passed over.
        """
        places = [Path(folder) / name for folder in packages for name in self.packages]
        searched = [Path(f) for f in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")) if f]
        cached = [Path(path).parent for path in _loader.cached(self.soname)]
        for folder in [*places, *searched, *cached, *map(Path, self.folders)]:
            for file in (folder / self.soname, folder / self.stem):
                try:
                    if file.is_file() and not read(file).is_door:
                        return file
                except (OSError, _elf.NotElf):
                    continue
        return None


DOORS = {
    door.library: door
    for door in (
        Door(
            "nccl", "libnccl.so.2", "libnccl.so", "ISTHMUS_REAL_NCCL", re.compile("p?nccl[A-Z]"), "/dev/nvidia[0-9]*",
            ("nvidia/nccl/lib",), ("/usr/local/nccl/lib", "/usr/local/cuda/lib64"),
        ),
        Door(
            "rccl", "librccl.so.1", "librccl.so", "ISTHMUS_REAL_RCCL", re.compile("p?nccl[A-Z]"), "/dev/kfd",
            ("torch/lib",), ("/opt/rocm/lib", "/opt/rocm/rccl/lib"),
        ),
        Door(
            "hccl", "libhccl.so", "libhccl.so", "ISTHMUS_REAL_HCCL", re.compile("[Hh]ccl[A-Z]"), "/dev/davinci[0-9]*",
            (), ("/usr/local/Ascend/ascend-toolkit/latest/lib64", "/usr/local/Ascend/latest/lib64"),
        ),
    )
}  # fmt: skip


@functools.cache
def _read(path: str, _changed: int) -> _elf.Elf:
    return _elf.read(path, NAMES)


def read(path: str | Path) -> _elf.Elf:
    """A file, with its symbols that begin with one of NAMES. Raises OSError and NotElf."""
    return _read(str(path), os.stat(path).st_mtime_ns)


def door_of_file(path: str | Path, soname: str = "") -> Door | None:
    """The door of the vendor whose library a file is, by its name or its SONAME. None: the file is no vendor's library."""
    for door in DOORS.values():
        if door.is_name(os.path.basename(path)) or door.is_name(soname):
            return door
    return None


def in_preload(environment: Mapping[str, str]) -> list[Path]:
    """The front doors in LD_PRELOAD, in order."""
    found = []
    for part in re.split("[: ]", environment.get("LD_PRELOAD", "")):
        try:
            if "/" in part and read(part).is_door:
                found.append(Path(part))
        except (OSError, _elf.NotElf):
            continue  # the loader itself reports such a file
    return found
