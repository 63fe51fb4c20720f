#!/usr/bin/env python3
"""Renews tests/interpose/names: which functions the oldest and the newest of NVIDIA's NCCL export. Downloads 0.5 GB.

Run by hand when there is a new NCCL. It says what the table of csrc/interpose lacks of them, and ends with 1 then. Nothing
but names is kept.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

import vendor_headers
from interpose_entries import read_table

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "csrc" / "interpose" / "nccl.symbols"
NAMES = ROOT / "tests" / "interpose" / "names"
# The oldest that is looked at, and the newest that there is.
WHEELS = ("nvidia-nccl-cu12==2.19.3", "nvidia-nccl-cu13")
INSIDE = "nvidia/nccl/lib/libnccl.so.2"


def exported(library: bytes) -> list[str]:
    table = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    names = {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
    return sorted(name for name in names if re.match(r"p?nccl[A-Z]", name))


def fetch(requirement: str) -> tuple[str, list[str]]:
    """(version, names) of a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", folder]
        for platform in (*vendor_headers.PLATFORMS, "manylinux_2_18_x86_64", "manylinux1_x86_64"):
            command += ["--platform", platform]
        subprocess.run([*command, requirement], check=True, stdin=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            return path.name.split("-")[1], exported(wheel.read(INSIDE))


def main() -> int:
    known = {name for row in read_table(TABLE) if row.is_in("nccl") for name in row.names}
    missing = []
    NAMES.mkdir(exist_ok=True)
    for requirement in WHEELS:
        version, names = fetch(requirement)
        missing += [f"{name} of {version}" for name in names if name not in known]
        (NAMES / f"nccl-{version}.txt").write_text("".join(f"{name}\n" for name in names))
        print(f"{version}: {len(names)} names")
    for name in missing:
        print(f"{TABLE.relative_to(ROOT)} lacks {name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
