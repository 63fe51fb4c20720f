"""Every function of the tables hands on its arguments and its result, whatever they are, on x86-64 and on AArch64.

A library and a program are made here from a table, in C and with other declarations than the entry points': the library
has every function and checks what it gets, the program calls each under both its names and checks what it gets back. A
function whose parameters the table does not say gets some of every kind, more than there are registers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from doors import DOORS, ROOT, SOURCES, Door, compile_c, said
from interpose_entries import Row, read_table

pytestmark = pytest.mark.computes

CROSS = ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")
# The door alone: nothing that is filled with numbers is a communicator or an id of Isthmus'.
ALONE = {"ISTHMUS_DISABLE": "1"}
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

PRELUDE = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef enum { some_result = 1 } Result;
typedef int Type;
typedef int Op;
typedef struct ncclComm *Comm;
typedef struct stream *Stream;
typedef struct window *Window;
typedef struct param *Param;
typedef struct { char internal[128]; } UniqueId;
typedef struct { int nRanks, rank, stride; } Team;
typedef struct { void *mcBasePtr; } Multimem;
typedef struct config Config;
typedef struct coll_config CollConfig;

/* No two bytes of the arguments of two calls are alike by accident: padding apart, all of an argument is this. */
static inline void fill(void *at, size_t bytes, unsigned call, unsigned argument) {
  unsigned char *p = at;
  size_t i;
  for (i = 0; i < bytes; ++i) p[i] = (unsigned char)(call * 37 + argument * 11 + i * 3 + 1);
}
"""


HCCL_PRELUDE = (
    PRELUDE[: PRELUDE.index("typedef struct ncclComm")]
    + """
#include <stdbool.h>
typedef enum { some_kind = 1 } Kind;
typedef struct comm *Comm;
typedef struct stream *Stream;
typedef struct window *Window;
typedef struct team *Team;
typedef uint64_t Handle;
typedef void (*Function)(int);
typedef struct root_info RootInfo;
typedef struct config Config;
typedef struct message Message;
typedef union { int32_t value; } Setting;
typedef struct { double a, b; } Pair;
typedef struct { char bytes[40]; } Long;
"""
    + PRELUDE[PRELUDE.index("/* No two") :]
)
# In registers of both kinds, on the stack, and in memory that the caller has for the result.
EVERY_KIND = ("int64_t", "double", "const char *", "float", "Pair", "uint8_t", "Long", *["int64_t"] * 5, *["double"] * 8)


def prelude(door: Door) -> str:
    return HCCL_PRELUDE if door.library == "hccl" else PRELUDE


def declared(row: Row, place: int) -> Row:
    """With some parameters and a result, where the table says none."""
    if row.policy != "jump":
        return row
    results = ("int64_t", "double", "Pair", "Long")
    return replace(row, result=results[place % len(results)], parameters=EVERY_KIND[place % 3 :])


def values(row: Row, call: int) -> str:
    """The arguments of a call, as variables."""
    lines = []
    for i, kind in enumerate(row.parameters):
        space = "" if kind.endswith("*") else " "
        lines.append(f"  {kind}{space}v{i}; fill(&v{i}, sizeof v{i}, {call}, {i});")
    return "\n".join(lines)


def library(rows: list[Row], prelude: str) -> str:
    text = prelude
    for call, row in enumerate(rows):
        space = "" if row.result.endswith("*") else " "
        declared = ", ".join(f"{kind} a{i}" for i, kind in enumerate(row.parameters)) or "void"
        body = values(row, call)
        for i in range(len(row.parameters)):
            body += (
                f'\n  if (memcmp(&a{i}, &v{i}, sizeof v{i})) {{ printf("{row.name}: argument {i}\\n"); fflush(stdout); }}'
            )
        end = "" if row.result == "void" else f"  {row.result}{space}r; fill(&r, sizeof r, {call}, 99); return r;\n"
        text += (
            f"{row.result}{space}{row.name}({declared});\n{row.result}{space}{row.name}({declared}) {{\n{body}\n{end}}}\n"
        )
    return text


def program(rows: list[Row], prelude: str) -> str:
    text, body = prelude, ""
    for call, row in enumerate(rows):
        space = "" if row.result.endswith("*") else " "
        for name in row.names:
            text += f"{row.result}{space}{name}({', '.join(row.parameters) or 'void'});\n"
            given = ", ".join(f"v{i}" for i in range(len(row.parameters)))
            got = f"{name}({given});"
            if row.result != "void":
                got = (
                    f"{row.result}{space}r = {got} {row.result}{space}x; fill(&x, sizeof x, {call}, 99);\n"
                    f'  if (memcmp(&r, &x, sizeof x)) printf("{name}: result\\n");'
                )
            body += f"  {{\n{values(row, call)}\n  {got}\n  ++calls;\n  }}\n"
    return f'{text}int main(void) {{\n  int calls = 0;\n{body}  printf("%d calls\\n", calls);\n  return 0;\n}}\n'


def make(door: Door, folder: Path, compiler: str, ours: Path) -> tuple[Path, Path, int]:
    """The program, the library behind the door, and how many calls there are."""
    rows = [declared(row, i) for i, row in enumerate(read_table(door.rows)) if row.is_in(door.library)]
    (folder / "library.c").write_text(library(rows, prelude(door)))
    (folder / "program.c").write_text(program(rows, prelude(door)))
    real = folder / "real" / door.soname
    real.parent.mkdir()
    compile_c("-shared", "-fPIC", f"-Wl,-soname,{door.soname}", folder / "library.c", "-o", real, compiler=compiler)
    compile_c(folder / "program.c", "-o", folder / "program", ours, f"-Wl,-rpath,{ours.parent}", compiler=compiler)
    return folder / "program", real, sum(len(row.names) for row in rows)


def test_every_call_arrives_as_it_was_made(door: Door, tmp_path: Path) -> None:
    calling, real, calls = make(door, tmp_path, "cc", door.path)
    assert calls > 190
    assert said(calling, **{door.setting: real}, **ALONE) == f"{calls} calls\n"


def test_every_call_arrives_the_second_time_too(door: Door, tmp_path: Path) -> None:
    """The first call of a function looks for it, those after it go straight there."""
    calling, real, calls = make(door, tmp_path, "cc", door.path)
    source = tmp_path / "program.c"
    text = source.read_text().replace("int main(void) {\n  int calls = 0;", "static int once(void) {\n  int calls = 0;")
    source.write_text(text + "int main(void) { once(); return once(); }\n")
    compile_c(source, "-o", calling, door.path, f"-Wl,-rpath,{door.path.parent}")
    assert said(calling, **{door.setting: real}, **ALONE) == f"{calls} calls\n" * 2


def test_another_declaration_would_be_noticed(tmp_path: Path) -> None:
    """The test of the test: a library that takes two arguments the other way round."""
    door = DOORS["nccl"]
    calling, real, _ = make(door, tmp_path, "cc", door.path)
    text = (tmp_path / "library.c").read_text()
    changed = text.replace("ncclAllReduce(const void * a0, void * a1,", "ncclAllReduce(const void * a1, void * a0,")
    assert changed != text
    (tmp_path / "library.c").write_text(changed)
    compile_c("-shared", "-fPIC", tmp_path / "library.c", "-o", real)
    told = ["ncclAllReduce: argument 0", "ncclAllReduce: argument 1"] * 2
    assert said(calling, **{door.setting: real}, **ALONE).splitlines()[:-1] == told


@pytest.mark.everything  # a compiler and an emulator that nothing else here needs
@pytest.mark.product(6)
def test_every_call_arrives_on_aarch64(door: Door, tmp_path: Path) -> None:
    """The same with the entry points built for AArch64, under emulation: a struct by value is passed otherwise there."""
    missing = [*(tool for tool in CROSS if shutil.which(tool) is None), *([] if QEMU else ["qemu-aarch64"])]
    if missing:
        assert not os.environ.get("CI"), f"no {missing[0]}"
        pytest.skip(f"no {missing[0]}")
    entries = tmp_path / "entries.cpp"
    generator = ROOT / "scripts" / "interpose_entries.py"
    for rows, kind, made in (
        (door.rows, door.library, entries),
        (SOURCES / "nccl.symbols", "bridge", tmp_path / "routed_calls.hpp"),
        (SOURCES / "hccl.symbols", "bridge", tmp_path / "routed_calls_hccl.hpp"),
    ):
        subprocess.run([sys.executable, generator, rows, kind, made], check=True, timeout=60)
    ours = tmp_path / "ours" / door.soname
    ours.parent.mkdir()
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-fno-exceptions", "-fno-rtti"]
    flags += ["-fno-threadsafe-statics", "-nostartfiles", f"-Wl,-soname,{door.soname}", f"-I{SOURCES}", f"-I{tmp_path}"]
    compile_c(*flags, *door.sources, entries, "-o", ours, compiler="aarch64-linux-gnu-g++")
    calling, real, calls = make(door, tmp_path, "aarch64-linux-gnu-gcc", ours)
    emulated = (str(QEMU), "-L", "/usr/aarch64-linux-gnu", calling)
    assert said(*emulated, **{door.setting: real}, **ALONE) == f"{calls} calls\n"
