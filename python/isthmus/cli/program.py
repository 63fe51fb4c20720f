"""`isthmus doctor --program CMD`: which library a program's collective calls go to, and what leads them to a door."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape

from .. import _interpose, _programs
from .._doors import DOORS, Door, read
from .._errors import ArgumentError, ConfigError
from .._programs import Program, User
from .common import mark

# The ways to a door that docs/howto/run-nccl-programs.md describes.
_WAYS = {
    "preload": "LD_PRELOAD",
    "hook": "LD_PRELOAD, and the hook",
    "import": "import isthmus.interpose",
    "library_path": "LD_LIBRARY_PATH",
    "audit": "LD_AUDIT",
}


def run(words: list[str], as_json: bool) -> int:
    try:
        report = examine(words)
    except ArgumentError as error:
        print(f"isthmus doctor: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(mark(report), indent=2))
    else:
        show(report)
    return 0 if report["choice"] or (report["program"]["own"] and not report["users"]) else 1


def examine(words: list[str]) -> dict[str, Any]:
    """The whole report. Raises ArgumentError where there is no such program."""
    program = _programs.examine(words, os.environ)
    choice, error = None, ""
    try:
        chosen = _interpose.choose(program)
        choice = {"library": chosen.door.library, "why": chosen.why, "variables": chosen.variables, "notes": chosen.words}
    except (ArgumentError, ConfigError) as reason:
        error = str(reason)
    return {
        "program": {
            "command": program.command,
            "executable": str(program.executable),
            "script": str(program.script) if program.script else None,
            "kind": "Python" if program.python else "static" if program.elf.static_program else "dynamic",
            "own": program.own,
            "unreachable": program.unreachable,
        },
        "doors": [_door(door, program) for door in DOORS.values()],
        "users": [_user(user, program) for user in program.users],
        "choice": choice,
        "error": error,
    }


def _door(door: Door, program: Program) -> dict[str, Any]:
    packages = program.python.folders if program.python else ()
    real = door.installed(program.environment, packages)
    return {
        "library": door.library,
        "soname": door.soname,
        "door": str(door.path) if door.path.is_file() else None,
        "real": str(real) if real else None,
    }


def _user(user: User, program: Program) -> dict[str, Any]:
    now = _programs.answer(program, user, "now", user.door)
    door = user.door.path
    ways = {way: _leads(program, user, way) for way in _programs.WAYS if way != "import" or program.python}
    if user.name in _programs.VARIABLES:
        ways["variable"] = door.is_file()
    return {
        "user": user.name,
        "file": str(user.file) if user.file else None,
        "library": user.door.library,
        "how": user.how,
        "text": user.text,
        "binds": str(now.library) if now.library else None,
        "symbols": now.functions,
        "lacks": sorted(user.functions - read(door).defined) if user.how == "linked" and door.is_file() else [],
        "ways": ways,
    }


def _leads(program: Program, user: User, way: str) -> bool:
    return user.door.path.is_file() and _programs.answer(program, user, way, user.door).leads


def show(report: dict[str, Any]) -> None:
    console = Console()
    program = report["program"]
    words = {"Python": "Python", "static": "linked statically", "dynamic": "linked dynamically"}[program["kind"]]
    script = f", by {program['script']}" if program["script"] else ""
    console.print(f"[bold]{escape(program['executable'])}[/], {words}{escape(script)}", soft_wrap=True)
    if not report["users"]:
        console.print("nothing in it uses a vendor's collective library, as far as its files tell")
    for user in report["users"]:
        console.print()
        where = f" ({user['file']})" if user["file"] and user["file"] != program["executable"] else ""
        console.print(f"[bold]{escape(user['user'])}[/]{escape(where)} {escape(_how(user))}", soft_wrap=True)
        for library, count in _bindings(user):
            console.print(f"  {'now':26}{count} → {library}", soft_wrap=True)
        for way, label in {**_WAYS, "variable": _programs.VARIABLES.get(user["user"], "")}.items():
            if way in user["ways"]:
                leads = "[green]leads to the front door[/]" if user["ways"][way] else "[yellow]passes by[/]"
                console.print(f"  {label:26}{leads}")
        if user["lacks"]:
            lacks = escape(", ".join(user["lacks"]))
            console.print(f"  [red]the front door lacks[/] {lacks}: behind it the program does not start", soft_wrap=True)
    console.print()
    for door in report["doors"]:
        real = door["real"] or "not found where a program would look"
        text = "in the package" if door["door"] else "not in this package"
        console.print(f"{door['library'].upper()}: front door {text}; {door['soname']}: {escape(real)}", soft_wrap=True)
    if report["choice"]:
        console.print(f"→ isthmus run -- {escape(' '.join(program['command']))}", style="cyan", soft_wrap=True)
        for name, value in report["choice"]["variables"].items():
            console.print(f"  {name}={escape(value)}", soft_wrap=True)
        for note in report["choice"]["notes"]:
            console.print(f"  {escape(note)}", soft_wrap=True)
    elif program["own"] and not report["users"]:
        console.print(escape(report["error"]), soft_wrap=True)
    else:
        console.print(f"[red]no front door:[/] {escape(report['error'])}", soft_wrap=True)


def _how(user: dict[str, Any]) -> str:
    soname = DOORS[user["library"]].soname
    if user["how"] == "linked":
        return f"is linked against {soname} and calls {len(user['symbols'])} of its functions"
    if user["how"] == "inside":
        return f"has {user['library'].upper()} inside"
    if user["how"] == "hidden":
        return f"has {user['library'].upper()} linked in statically, and shows none of its functions"
    return f"may open {user['text']}"


def _bindings(user: dict[str, Any]) -> list[tuple[str, str]]:
    """(library, how many functions), or what is opened."""
    if user["how"] == "hidden":
        return [(escape(user["file"]), "all functions")]
    if not user["symbols"]:
        return [(escape(user["binds"] or "no file where the loader looks"), "opened")]
    counts = Counter(user["symbols"].values())
    return [
        (
            escape(library or "no file where the loader looks, if nothing has loaded it before"),
            f"{count} function{'s' if count > 1 else ''}",
        )
        for library, count in sorted(counts.items(), key=lambda item: -item[1])
    ]


__all__ = ["examine", "run", "show"]
