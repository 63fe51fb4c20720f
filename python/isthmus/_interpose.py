"""Which front door a program gets, and the variables that lead the program there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import _elf
from ._comm import settings
from ._doors import AUDITOR, DOORS, HOOK, Door, door_of_file, in_preload, read
from ._errors import ArgumentError
from ._programs import VLLM_PATH, Program, User, answer

__all__ = ["Choice", "beside_the_program", "choose", "door_here", "hidden_text", "users_of_a_door", "wanted_door"]

_SANITIZER = re.compile(r"lib(a|t|l|m|ub|hwa)san\.so")


@dataclass
class Choice:
    """A front door, and the variables that lead the program to the door."""

    door: Door
    why: str  # why this door, for a line that is printed
    variables: dict[str, str] = field(default_factory=dict)  # set for the program
    words: list[str] = field(default_factory=list)  # further lines that are printed


def wanted_door() -> Door | None:
    """The door that ISTHMUS_INTERPOSE names; None for auto. Raises ConfigError where the settings cannot be read."""
    value = next(str(row["value"]) for row in settings() if row["name"] == "ISTHMUS_INTERPOSE")
    return DOORS.get(value)


def door_here(environment: Mapping[str, str], packages: Sequence[str], ask: str) -> tuple[Door, str]:
    """The door for this machine, and why: the vendor whose devices are here, else the vendor whose library is installed.

    Raises ArgumentError where that is no one vendor. `ask` ends the error's text, and tells the user how to name a vendor.
    """
    by_device = [door for door in DOORS.values() if door.has_devices()]
    if len(by_device) == 1:
        return by_device[0], f"this machine has {by_device[0].devices}"
    among = by_device or list(DOORS.values())
    libraries = {door.library: file for door in among if (file := door.installed(environment, packages))}
    if len(libraries) == 1:
        library, file = next(iter(libraries.items()))
        return DOORS[library], f"{file} is installed"
    if not libraries:
        names = ", ".join(door.soname for door in DOORS.values())
        raise ArgumentError(f"nothing here uses a vendor's library, and none of {names} is installed; {ask}")
    found = ", ".join(f"{DOORS[library].name} in {file}" for library, file in libraries.items())
    raise ArgumentError(f"more than one vendor's library is installed ({found}); {ask}")


def choose(
    program: Program,
    vendor: str | None = None,
    hook: bool | None = None,
    audit: bool = False,
    real: str | None = None,
) -> Choice:
    """The one door for this program. Raises ArgumentError where no door fits.

    - `vendor` is a library's name, a key of DOORS. None: the door is chosen by what the program uses, then by the machine.
    - `hook` says whether the program gets the hook before dlopen. None: where a part opens the library by its path.
    - `audit` leads the program by the loader's auditor (LD_AUDIT), in place of LD_PRELOAD.
    - `real` is the path of the vendor's library. None: the door looks for the library.
    """
    if program.unreachable:
        raise ArgumentError(program.unreachable)
    door, why = _door_for(program, vendor)
    if not door.path.is_file():
        raise ArgumentError(f"this package has no front door for {door.name}: {door.path} is missing")
    for user in program.users:
        if user.how == "inside":
            raise ArgumentError(
                f"{user.file} has {user.door.name} inside: a front door would take its calls and not find it"
            )
        lacks = sorted(user.functions - read(door.path).defined) if user.door == door else []
        if lacks:
            raise ArgumentError(
                f"{user.file} needs {', '.join(lacks)}, newer than the front door: it would not start behind it"
            )
    choice = Choice(door, why)
    _say_hidden(program, choice, asked=bool(vendor or wanted_door()))
    if hook is None:
        opened = [user.name for user in program.users if user.how == "path" and user.name != "vllm"]
        hook = bool(opened) and not audit
        if hook:
            choice.words.append(
                f"{', '.join(dict.fromkeys(opened))} may open the library by its path: with the hook before dlopen"
            )
    if hook and audit:
        raise ArgumentError("--audit needs no hook before dlopen: the auditor is asked about every path")
    _preload(program, choice, hook, audit)
    _say_where(program, choice, real)
    if program.environment.get("ISTHMUS_DISABLE") == "1":
        choice.words.append("ISTHMUS_DISABLE=1 is set: the front door only forwards")
    if program.launcher:
        choice.words.append(
            f"{program.launcher} hands variables to ranks on other hosts only where it is told to; "
            f"better {program.launcher} ... isthmus run -- PROGRAM"
        )
    return choice


def hidden_text(user: User) -> str:
    """Why no door gets the calls of a part with how "hidden"."""
    return (
        f"{user.file} has {user.door.name} linked in statically, where no front door can take its calls: they run without "
        f"Isthmus; link it with {user.door.soname} instead"
    )


def _say_hidden(program: Program, choice: Choice, asked: bool) -> None:
    """Refuses a program whose every use of the library is hidden, unless the door was asked for. Else adds lines."""
    users = [user for user in program.users if user.door == choice.door]
    hidden = [user for user in users if user.how == "hidden"]
    if hidden and len(hidden) == len(users) and not asked:
        text = hidden_text(hidden[0])
        raise ArgumentError(f"{text}, or start it all the same: --vendor {choice.door.library}")
    choice.words += [hidden_text(user) for user in hidden]


def users_of_a_door(program: Program) -> list[User]:
    """The parts of the program that decide which vendor's door the program gets.

    pyhccl decides only where HCCL is installed: without HCCL pyhccl may be installed too, and is of no use. A part whose use
    is hidden decides only where no other part uses a library.
    """
    packages = program.python.folders if program.python else ()

    def has_library(user: User) -> bool:
        there = answer(program, user, "now", user.door).library or user.door.installed(program.environment, packages)
        return there is not None

    users = [user for user in program.users if user.name != "pyhccl" or has_library(user)]
    return [user for user in users if user.how != "hidden"] or users


def _behind(program: Program) -> str:
    """The end of an error's text: how to write the command so that Isthmus sees the program behind the launcher."""
    launcher = program.launcher or Path(program.command[0]).name
    if program.launcher:
        return f", or stand behind {launcher}, where the program is seen: {launcher} ... isthmus run -- PROGRAM"
    if launcher == "torchrun":
        return ", or stand behind torchrun: torchrun --no-python ... isthmus run -- python PROGRAM"
    return ""


def _door_for(program: Program, vendor: str | None) -> tuple[Door, str]:
    given = DOORS[vendor] if vendor else wanted_door()
    all_users = users_of_a_door(program)
    used = [door for door in DOORS.values() if any(user.door == door for user in all_users)]
    users = {door.library: next(user for user in all_users if user.door == door) for door in used}
    if given:
        clash = [door for door in used if door != given and door.functions == given.functions]
        if clash and given not in used:
            user = users[clash[0].library]
            raise ArgumentError(
                f"{user.file or user.name} uses {clash[0].name} ({clash[0].soname}), and {given.name}'s front door would "
                f"take its calls: --vendor {clash[0].library}"
            )
        return given, "as asked for"
    if len(used) == 1:
        user = users[used[0].library]
        return used[0], f"{user.name} uses {used[0].soname}"
    ask = f"say which with --vendor{_behind(program)}"
    packages = program.python.folders if program.python else ()
    if program.own and not used:
        raise ArgumentError(
            "it is a program of Isthmus, linked against libisthmus: it needs no front door; start it as it is"
        )
    if used:
        # A program that works with either vendor's library contains the names of both.
        there = {door.library: file for door in used if (file := door.installed(program.environment, packages))}
        if len(there) == 1:
            library, file = next(iter(there.items()))
            return DOORS[library], f"{users[library].name} uses {DOORS[library].soname}, and {file} is installed"
        text = ", ".join(f"{user.name} uses {user.door.soname}" for user in users.values())
        raise ArgumentError(f"more than one vendor's library is in use ({text}); {ask}")
    return door_here(program.environment, packages, ask)


def _preload(program: Program, choice: Choice, hook: bool, audit: bool) -> None:
    """Puts the one door into LD_PRELOAD (or the auditor into LD_AUDIT).

    The order is: sanitizers, which must be first; the door; the hook; the other preloaded libraries. A second door is an
    error.
    """
    there = in_preload(program.environment)
    for path in there:
        if not _same(path, choice.door.path) and (path.name != choice.door.soname or audit):
            raise ArgumentError(f"LD_PRELOAD has a front door already, {path}: one a process")
    if audit:
        before = [part for part in program.environment.get("LD_AUDIT", "").split(":") if part and Path(part) != AUDITOR]
        choice.variables["LD_AUDIT"] = ":".join([*before, str(AUDITOR)])
        return
    parts = [part for part in re.split("[: ]", program.environment.get("LD_PRELOAD", "")) if part]
    ours = ([] if there else [str(choice.door.path)]) + ([str(HOOK)] if hook and str(HOOK) not in parts else [])
    if torn := next((path for path in ours if re.search("[: ]", path)), None):
        raise ArgumentError(
            f"{torn}: the loader takes LD_PRELOAD apart at blanks and colons, and would start the program without the front "
            f"door; install Isthmus in a folder without them, or `import isthmus.interpose` in the program"
        )
    first = [part for part in parts if _SANITIZER.match(os.path.basename(part))]
    choice.variables["LD_PRELOAD"] = ":".join([*first, *ours, *(part for part in parts if part not in first)])


def _say_where(program: Program, choice: Choice, real: str | None) -> None:
    """Sets the variable with the path of the vendor's library, where the door would not find the library by itself.

    For vLLM also the variable from which vLLM takes the path of NCCL. The path that stood there becomes the real library.
    """
    door = choice.door
    vllm = any(user.name == "vllm" and user.door == door for user in program.users)
    path = program.environment.get(VLLM_PATH, "")
    if path or vllm:
        choice.variables[VLLM_PATH] = str(door.path)
        if path and not real and not _is_door(Path(path)):
            real = path
    if real:
        _check_real(real, door)
        choice.variables[door.setting] = str(Path(real).absolute())
    elif door.setting not in program.environment and (found := beside_the_program(program, door)):
        choice.variables[door.setting] = str(found)


def beside_the_program(program: Program, door: Door) -> Path | None:
    """The vendor's library among the program's Python packages, where neither the loader nor the door would find it.

    None in two cases: a part of the program that is linked against the library reaches it already, or no package has the
    library. PyTorch's parts are linked so; CuPy's and JAX' parts are not. The folder of packages that holds Isthmus is left
    out: the door itself looks there.
    """
    if program.python is None:
        return None
    linked = [user for user in program.users if user.how == "linked" and user.door == door]
    if any(answer(program, user, "now", door, alone=True).library for user in linked):
        return None
    ours = str(Path(__file__).resolve().parent.parent)
    others = [folder for folder in program.python.folders if os.path.realpath(folder) != ours]
    places = (Path(folder) / name / door.soname for folder in others for name in door.packages)
    return next((place for place in places if place.is_file()), None)


def _check_real(real: str, door: Door) -> None:
    try:
        elf = read(real)
    except OSError as error:
        raise ArgumentError(f"{real}: {error.strerror}") from None
    except _elf.NotElf as error:
        raise ArgumentError(str(error)) from None
    if elf.is_door:
        raise ArgumentError(f"{real} is a front door, and no {door.name}")
    if not any(door.functions.match(name) for name in elf.defined):
        raise ArgumentError(f"{real} has none of {door.name}'s functions")
    other = door_of_file(real, elf.soname)
    if other and other != door:
        raise ArgumentError(f"{real} is {other.name}, and no {door.name}")


def _is_door(path: Path) -> bool:
    try:
        return read(path).is_door
    except (OSError, _elf.NotElf):
        return False


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False
