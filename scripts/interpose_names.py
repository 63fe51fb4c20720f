#!/usr/bin/env python3
"""Renews tests/interpose/names: which functions the oldest and the newest of NVIDIA's NCCL export, and which of HCCL's an
old and the newest PyTorch for Ascend are linked against or declare: HCCL itself is in no package. Downloads 0.5 GB.

Run by hand when there is a new one. It says what the tables of csrc/interpose lack of them, and ends with 1 then. Nothing
but names is kept.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from elftools.elf.elffile import ELFFile

import vendor_headers
from interpose_entries import read_table

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "csrc" / "interpose"
NAMES = ROOT / "tests" / "interpose" / "names"
# The oldest that is looked at, and the newest that there is.
WHEELS = ("nvidia-nccl-cu12==2.19.3", "nvidia-nccl-cu13")
INSIDE = "nvidia/nccl/lib/libnccl.so.2"
ASCEND = ("torch-npu==2.1.0.post12", "torch-npu")
NCCL, HCCL = re.compile(r"p?nccl[A-Z]"), re.compile(r"H(ccl|com)[A-Z]")


def symbols(library: bytes, defined: bool) -> set[str]:
    """Those that it has for others, or that it asks for."""
    table = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    return {symbol.name for symbol in table.iter_symbols() if (symbol["st_shndx"] != "SHN_UNDEF") == defined}


def exported(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in symbols(wheel.read(INSIDE), True) if NCCL.match(name)}


def wanted(wheel: zipfile.ZipFile) -> set[str]:
    """Of what is linked, and of the header by which the rest is looked up."""
    found = set()
    for name in wheel.namelist():
        if name.endswith(".so"):
            found |= {symbol for symbol in symbols(wheel.read(name), False) if HCCL.match(symbol)}
        if name.endswith("/hccl/inc/hccl/hccl.h"):
            text = re.sub(r"/\*.*?\*/|//[^\n]*", "", wheel.read(name).decode(errors="replace"), flags=re.DOTALL)
            found |= set(re.findall(r"^extern\b[^;{}()]*?\b(Hccl[A-Z]\w*)\s*\(", text, re.MULTILINE))
    return found


def fetch(requirement: str, names: Callable[[zipfile.ZipFile], set[str]], *words: str) -> tuple[str, list[str]]:
    """(version, names) of a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", folder]
        for platform in (*vendor_headers.PLATFORMS, "manylinux_2_18_x86_64", "manylinux1_x86_64"):
            command += ["--platform", platform]
        subprocess.run([*command, *words, requirement], check=True, stdin=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            return path.name.split("-")[1], sorted(names(wheel))


def main() -> int:
    missing = []
    NAMES.mkdir(exist_ok=True)

    def renew(library: str, kind: str, version: str, names: list[str]) -> None:
        table = TABLES / f"{library}.symbols"
        known = {name for row in read_table(table) if row.is_in(library) for name in row.names}
        missing.extend(f"{table.relative_to(ROOT)} lacks {name} of {kind}-{version}" for name in names if name not in known)
        (NAMES / f"{kind}-{version}.txt").write_text("".join(f"{name}\n" for name in names))
        print(f"{kind}-{version}: {len(names)} names")

    for requirement in WHEELS:
        renew("nccl", "nccl", *fetch(requirement, exported))
    for requirement in ASCEND:
        renew("hccl", "hccl-torch_npu", *fetch(requirement, wanted, *vendor_headers.ASCEND_PYTHON))
    print(*missing, sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
