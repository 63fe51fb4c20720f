"""Every function of the table hands on its arguments and its result, whatever they are, on x86-64 and on AArch64.

A library and a program are made here from the table, in C and with other declarations than the entry points': the library
has every function and checks what it gets, the program calls each under both its names and checks what it gets back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doors import DOORS, ROOT, Door, compile_c, said
from interpose_entries import Row, read_table

SOURCES = ROOT / "csrc" / "interpose"
TABLE = SOURCES / "nccl.symbols"
CROSS = ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")
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


def values(row: Row, call: int) -> str:
    """The arguments of a call, as variables."""
    lines = []
    for i, kind in enumerate(row.parameters):
        space = "" if kind.endswith("*") else " "
        lines.append(f"  {kind}{space}v{i}; fill(&v{i}, sizeof v{i}, {call}, {i});")
    return "\n".join(lines)


def library(rows: list[Row]) -> str:
    text = PRELUDE
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


def program(rows: list[Row]) -> str:
    text, body = PRELUDE, ""
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
    rows = [row for row in read_table(TABLE) if row.is_in(door.library)]
    (folder / "library.c").write_text(library(rows))
    (folder / "program.c").write_text(program(rows))
    real = folder / "real" / door.soname
    real.parent.mkdir()
    compile_c("-shared", "-fPIC", f"-Wl,-soname,{door.soname}", folder / "library.c", "-o", real, compiler=compiler)
    compile_c(folder / "program.c", "-o", folder / "program", ours, f"-Wl,-rpath,{ours.parent}", compiler=compiler)
    return folder / "program", real, sum(len(row.names) for row in rows)


def test_every_call_arrives_as_it_was_made(door: Door, tmp_path: Path) -> None:
    calling, real, calls = make(door, tmp_path, "cc", door.path)
    assert calls > 190
    assert said(calling, **{door.setting: real}) == f"{calls} calls\n"


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
    assert said(calling, **{door.setting: real}).splitlines()[:-1] == told


def test_every_call_arrives_on_aarch64(door: Door, tmp_path: Path) -> None:
    """The same with the entry points built for AArch64, under emulation: a struct by value is passed otherwise there."""
    missing = [*(tool for tool in CROSS if shutil.which(tool) is None), *([] if QEMU else ["qemu-aarch64"])]
    if missing:
        assert not os.environ.get("CI"), f"no {missing[0]}"
        pytest.skip(f"no {missing[0]}")
    entries = tmp_path / "entries.cpp"
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "interpose_entries.py", TABLE, door.library, entries], check=True, timeout=60
    )
    ours = tmp_path / "ours" / door.soname
    ours.parent.mkdir()
    sources = [SOURCES / f"{name}.cpp" for name in ("real", "search", "neighbours", "errors", "words", door.library)]
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-fno-exceptions", "-fno-rtti"]
    flags += ["-fno-threadsafe-statics", "-nostartfiles", f"-Wl,-soname,{door.soname}", f"-I{SOURCES}"]
    compile_c(*flags, *sources, entries, "-o", ours, compiler="aarch64-linux-gnu-g++")
    calling, real, calls = make(door, tmp_path, "aarch64-linux-gnu-gcc", ours)
    emulated = (str(QEMU), "-L", "/usr/aarch64-linux-gnu", calling)
    assert said(*emulated, **{door.setting: real}) == f"{calls} calls\n"
