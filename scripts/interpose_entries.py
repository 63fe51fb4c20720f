#!/usr/bin/env python3
"""Makes the entry points of a front door of csrc/interpose from its table of symbols.

    interpose_entries.py csrc/interpose/nccl.symbols nccl build/.../nccl_entries.cpp

    interpose_entries.py csrc/interpose/nccl.symbols bridge build/.../routed_calls.hpp

The second argument is the door; it chooses the rows. `bridge` makes the list of the functions that the bridge has for the
doors of that table: those of all rows that are routed to it. CMake runs it. Standard library only.
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

# A door, and the words for the library of a row that it has. The newest HCCL has its functions in two files.
DOORS = {"nccl": ("nccl", "both"), "rccl": ("rccl", "both"), "hccl": ("hccl", "hcomm")}
LIBRARIES = tuple(dict.fromkeys(word for words in DOORS.values() for word in words))
HEADERS = {
    "nccl": ("entry.hpp", "own.hpp"),
    "rccl": ("entry.hpp", "own.hpp"),
    "hccl": ("entry_hccl.hpp", "own_hccl.hpp"),
}
SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "interpose"
BRIDGE = "bridge"
POLICIES = ("forward", "route", "come", "end", "refuse", "own", "jump")
TO_THE_BRIDGE = ("route", "come", "end")
COMMUNICATOR = "Comm"
SIGNATURE = re.compile(r"^(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>[\w *,]*)\)$")


class TableError(Exception):
    """A row that is not one."""


@dataclass(frozen=True)
class Row:
    library: str
    since: str
    twin: str  # the letter before its other name, or nothing
    policy: str
    result: str
    name: str
    parameters: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.twin + self.name) if self.twin else (self.name,)

    @property
    def communicator(self) -> int | None:
        """Which parameter is the communicator that the call is for."""
        return self.parameters.index(COMMUNICATOR) if COMMUNICATOR in self.parameters else None

    @property
    def is_operation(self) -> bool:
        """Whether the call gives a stream work, rather than a handle to the caller."""
        return "Stream" in self.parameters and "Handle *" not in self.parameters

    def is_in(self, door: str) -> bool:
        return self.library in DOORS[door]


def read_row(line: str) -> Row:
    words = line.split(maxsplit=4)
    if len(words) != 5:
        raise TableError("has fewer than five columns")
    library, since, twin, policy, signature = words
    if library not in LIBRARIES:
        raise TableError(f"{library} is none of {', '.join(LIBRARIES)}")
    if not re.fullmatch(r"-|\d+\.\d+\.\d+", since):
        raise TableError(f"{since} is no version")
    if twin not in ("p", "-"):
        raise TableError(f"{twin} is neither p nor -")
    if policy not in POLICIES:
        raise TableError(f"{policy} is none of {', '.join(POLICIES)}")
    if policy == "jump":
        if not re.fullmatch(r"\w+", signature):
            raise TableError(f"{signature} is no name, and a jump has nothing else")
        if twin != "-":
            raise TableError(f"{signature} is a jump, and has no twin")
        return Row(library, since, "", policy, "", signature, ())
    match = SIGNATURE.match(signature)
    if match is None:
        raise TableError(f"{signature} is no signature")
    parameters = tuple(part.strip() for part in match["parameters"].split(",")) if match["parameters"].strip() else ()
    if not all(parameters):
        raise TableError(f"{signature} has an empty parameter")
    if policy in ("refuse", "come", "end") and COMMUNICATOR not in parameters:
        raise TableError(f"{signature} has no communicator that it could {policy}")
    return Row(library, since, twin.strip("-"), policy, match["result"].strip(), match["name"], parameters)


def read_table(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            row = read_row(line)
            if any(set(row.names) & set(known.names) for known in rows):
                raise TableError(f"{row.name} is there already")
        except TableError as error:
            raise SystemExit(f"{path}:{number}: {error}") from None
        rows.append(row)
    return rows


def resolved(row: Row, otherwise: str) -> str:
    """A handle of ours that stands for one of the library's own is replaced by that; what is done with others."""
    comm = f"a{row.communicator}"
    known = f"    if (const Comm known = behind({comm})) {comm} = known;\n    else return {otherwise};\n"
    return f"  if (ours({comm})) {{\n{known}  }}\n"


def entry(row: Row, grouped: bool = False) -> str:
    """One function, and its twin as another name of it: as at NCCL, the plain name is the weak one.

    `grouped`: an operation of the real library's is noted, for the end of an open group.
    """
    if row.policy == "jump":
        return f"ISTHMUS_JUMP({row.name})\n"
    declared = ", ".join(f"{kind} a{i}".replace("* a", "*a") for i, kind in enumerate(row.parameters))
    given = ", ".join(f"a{i}" for i in range(len(row.parameters)))
    first = row.names[-1]
    space = "" if row.result.endswith("*") else " "
    kinds = ", ".join(row.parameters)
    if row.policy == "own":
        text = f"ISTHMUS_ENTRY {row.result}{space}{first}({declared}) {{ return own_{row.name}({given}); }}\n"
    else:
        before = ""
        if row.policy == "refuse":
            what = "spanning_operation" if row.is_operation else f"spanning<{row.result}>"
            before = resolved(row, f'{what}("{row.name}")')
        elif row.policy in ("route", "come") and row.communicator is not None:
            before = resolved(row, f"the_bridge()->{row.name}({given})")
            if row.policy == "come":
                before += f"  if (!a{row.communicator}) {{\n    const Inside inside;\n"
                before += f"    if (const Calls *b = bridge(inside)) return b->{row.name}({given});\n  }}\n"
        elif row.policy == "end":
            before = f"  if (const Calls *b = the_bridge()) return b->{row.name}({given});\n"
        elif row.policy == "route":
            before = f"  const Inside inside;\n  if (const Calls *b = bridge(inside)) return b->{row.name}({given});\n"
        if grouped and row.communicator is not None and row.is_operation:
            before += f"  operates_on(a{row.communicator});\n"
        text = (
            f"static {row.result}{space}first_{row.name}({kinds});\n"
            f"static constinit BoundFunction<{row.result}({kinds})> bound_{row.name}{{&first_{row.name}}};\n"
            f"static {row.result}{space}first_{row.name}({declared}) {{\n"
            f'  if (auto *f = bind(bound_{row.name}, "{row.name}")) return f({given});\n'
            f'  return refused<{row.result}>("{row.name}");\n'
            f"}}\n"
            f"ISTHMUS_ENTRY {row.result}{space}{first}({declared}) {{\n"
            f"{before}  return bound(bound_{row.name})({given});\n"
            f"}}\n"
        )
    if row.twin:
        weak = f'__attribute__((weak, alias("{first}")))'
        text += f"ISTHMUS_ENTRY {row.result}{space}{row.name}({kinds}) {weak};\n"
    return text


def calls(rows: list[Row], source: str) -> str:
    """The functions that the bridge has, as a struct of their addresses, and a number that tells such lists apart."""
    routed = [row for row in rows if row.policy in TO_THE_BRIDGE]
    members = [f"{row.result} (*{row.name})({', '.join(row.parameters)});".replace("* (", "*(") for row in routed]
    of_hccl = bool(rows) and rows[0].is_in("hccl")
    # What the list stands in is part of what door and bridge have to agree on.
    around = [(SOURCES / name).read_text() for name in ("front_door.hpp", f"calls_{'hccl' if of_hccl else 'nccl'}.hpp")]
    digest = zlib.crc32("\n".join([*members, *around]).encode())
    header, space = ("abi_hccl.hpp", "isthmus::interpose::hccl") if of_hccl else ("abi.hpp", "isthmus::interpose")
    head = f'// Made from {source} by scripts/interpose_entries.py.\n#pragma once\n\n#include "{header}"\n'
    body = "".join(f"  {member}\n" for member in members)
    return (
        f"{head}\nnamespace {space} {{\n\nconstexpr uint32_t kCallsDigest = {digest}u;\n\n"
        f"struct RoutedCalls {{\n{body}}};\n\n}}  // namespace {space}\n"
    )


def entries(rows: list[Row], door: str, source: str) -> str:
    head = f"// Made from {source} by scripts/interpose_entries.py.\n"
    head += "".join(f'#include "{header}"\n' for header in HEADERS[door])
    return f"{head}\nusing namespace isthmus::interpose;\n\n" + "\n".join(entry(row, door != "hccl") for row in rows)


def main(words: list[str]) -> int:
    if len(words) != 3 or words[1] not in (*DOORS, BRIDGE):
        raise SystemExit(f"usage: interpose_entries.py TABLE {'|'.join((*DOORS, BRIDGE))} OUTPUT")
    table, door, output = Path(words[0]), words[1], Path(words[2])
    rows = [row for row in read_table(table) if door == BRIDGE or row.is_in(door)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(calls(rows, table.name) if door == BRIDGE else entries(rows, door, table.name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
