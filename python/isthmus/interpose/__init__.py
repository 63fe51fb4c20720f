"""Importing this module loads the vendor's front door, before the libraries that need it: write it before `import torch`.

>>> import isthmus.interpose
>>> import torch

No variable is needed, and no device. The door is chosen in this order:

1. ISTHMUS_INTERPOSE names the vendor's library.
2. The installed packages (PyTorch, CuPy) use a vendor's library.
3. This machine has a vendor's devices, or a vendor's library.

With ISTHMUS_DISABLE=1 the import does nothing. An import that comes too late raises `isthmus.Error`, because a library that
is loaded already keeps its calls.

`door` is the file of the front door, or None where the door is switched off. The folder of this module holds the doors.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from pathlib import Path

from .. import _elf
from .._doors import Door, door_of_file, read
from .._errors import Error
from .._interpose import beside_the_program, door_here, hidden_text, users_of_a_door, wanted_door
from .._programs import Program, Python, python_users, searchable

__all__ = ["door"]


def _mapped() -> list[tuple[Path, _elf.Elf]]:
    """The vendors' libraries and the doors that this process has loaded."""
    found = []
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = dict.fromkeys(line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.count("/") > 0)
    for path in paths:
        # Only libraries are opened: other mapped files may be devices.
        if ".so" not in os.path.basename(path) or not os.path.isfile(path):
            continue
        try:
            elf = _elf.read(path)
        except (OSError, _elf.NotElf):
            continue
        if elf.is_door or door_of_file(path, elf.soname):
            found.append((Path(path), elf))
    return found


def _choose(program: Program) -> Door:
    given = wanted_door()
    if given:
        return given
    used = {user.door.library: user for user in users_of_a_door(program)}
    if len(used) == 1:
        return next(iter(used.values())).door
    ask = "say which with ISTHMUS_INTERPOSE"
    if used:
        text = ", ".join(f"{user.name} uses {user.door.soname}" for user in used.values())
        raise Error(f"isthmus.interpose: more than one vendor's library is in use ({text}); {ask}")
    return door_here(os.environ, searchable(sys.path), ask)[0]


def _enter() -> Path | None:
    if os.environ.get("ISTHMUS_DISABLE") == "1":
        return None
    mapped = _mapped()
    doors = [path for path, elf in mapped if elf.is_door]
    python = Python(Path(sys.executable), searchable(folder for folder in sys.path if folder))
    users = python_users(python, os.environ)
    program = Program([], dict(os.environ), python.executable, read(python.executable), python=python, users=users)
    chosen = _choose(program)
    if doors and not any(path.name == chosen.soname for path in doors):
        raise Error(f"isthmus.interpose: {doors[0]} is loaded, and {chosen.name}'s front door is asked for: one a process")
    if doors:
        return doors[0]
    for path, elf in mapped:
        if door_of_file(path, elf.soname) == chosen:
            how = "torch has been imported, and with it" if "torch" in sys.modules else f"{chosen.name} is loaded already:"
            raise Error(f"isthmus.interpose: {how} {path}, which keeps its calls; import isthmus.interpose before")
    for user in users:
        if user.how == "inside" and user.door == chosen:
            raise Error(f"isthmus.interpose: {user.file} has {chosen.name} inside; no front door can stand before it")
        if user.how == "hidden" and user.door == chosen:  # the program may have no use for that package
            warnings.warn(f"isthmus.interpose: {hidden_text(user)}", stacklevel=2)
    if not chosen.path.is_file():
        raise Error(f"isthmus.interpose: this package has no front door for {chosen.name}: {chosen.path} is missing")
    lacks = {name for user in users if user.door == chosen for name in user.functions} - read(chosen.path).defined
    if lacks:
        raise Error(f"isthmus.interpose: the front door lacks {', '.join(sorted(lacks))}, which an installed package needs")
    if chosen.setting not in os.environ:
        real = beside_the_program(program, chosen)
        if real:  # the door reads it at its first call
            os.environ[chosen.setting] = str(real)
    # For all: a library that needs the vendor's by another name than the door's SONAME still finds the functions here first.
    ctypes.CDLL(str(chosen.path), mode=ctypes.RTLD_GLOBAL)
    return chosen.path


door: Path | None = _enter()
