"""`isthmus settings [NAME]`: what can be set, and what is in force."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from typing import Any

from .. import settings
from .._errors import Error


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "settings",
        help="what can be set, and what is in force",
        description="Of one setting all that there is to know; without a name one line for each.",
    )
    parser.add_argument("name", nargs="?", help="with or without ISTHMUS_")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    rows = {str(row["name"]): row for row in settings()}
    if options.name is None:
        wide = max(map(len, rows))
        for name, row in rows.items():
            print(f"{name:{wide}}  {shown(row)}{'   (given)' if row['given'] else ''}")
        return 0
    wanted = options.name.upper()
    name = wanted if wanted.startswith("ISTHMUS_") else f"ISTHMUS_{wanted}"
    if name not in rows:
        near = difflib.get_close_matches(name, rows, 1)
        hint = f"did you mean {near[0]}?" if near else "`isthmus settings` lists all"
        raise Error(f"no setting is called {name}; {hint}")
    row = rows[name]
    given = "given" if row["given"] else "the default"
    print(f"{name} = {shown(row)}   ({given})")
    print("\n".join(textwrap.wrap(str(row["meaning"]), 100)))
    print(f"range:   {str(row['range']).replace('|', ', ')}")
    print(f"default: {row['default'] if row['default'] != '' else '(empty)'}")
    if row["agreed"]:
        print("must be equal on all ranks")
    if row["process"]:
        print("of the process: its first communicator takes it")
    return 0


def shown(row: dict[str, Any]) -> str:
    return str(row["value"]) if row["value"] != "" else "(empty)"
