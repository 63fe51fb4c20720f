#!/usr/bin/env python3
"""Puts Intel oneCCL for CPUs together from PyPI's wheels, in the folder that is given: a vendor's real library to test with.

`pip install oneccl-cpu` gives no library that loads: its core wants a libccl.so.2 that only the GPU build's wheel holds, and
a libfabric that neither does. So 9 of the 180 MB are taken from three wheels. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The wheel, and what is taken from it: the end of a path inside, and where it goes. libccl.so.2 looks for its plugin beside
# itself, the plugin for the core in ccl/cpu/lib; Isthmus finds libfabric and its providers beside libccl.so.2.
PIECES = {
    "oneccl==2022.2.0": {"/lib/libccl.so.2": "libccl.so.2", "/lib/libccl_legacy_cpu.so": "libccl_legacy_cpu.so"},
    "oneccl-cpu==2022.2.0": {"/lib/libccl.so.1": "ccl/cpu/lib/libccl.so.1"},
    "impi-rt==2021.14.2": {
        "/lib/libfabric/libfabric.so.1": "libfabric.so.1",
        "/prov/libtcp-fi.so": "prov/libtcp-fi.so",
        "/prov/libshm-fi.so": "prov/libshm-fi.so",
        "/prov/librxm-fi.so": "prov/librxm-fi.so",
    },
}


def library(folder: Path) -> Path:
    return folder / "libccl.so.2"


def complete(folder: Path) -> bool:
    return all((folder / place).is_file() for pieces in PIECES.values() for place in pieces.values())


def assemble(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", downloads]
        subprocess.run([*command, *PIECES], check=True, stdin=subprocess.DEVNULL)
        wheels = {path.name.split("-")[0].replace("_", "-"): path for path in Path(downloads).glob("*.whl")}
        for requirement, pieces in PIECES.items():
            with zipfile.ZipFile(wheels[requirement.split("==")[0]]) as wheel:
                for inside, place in pieces.items():
                    name = next(n for n in wheel.namelist() if n.endswith(inside))
                    target = folder / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))
                    target.chmod(0o755)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: oneccl.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(library(Path(sys.argv[1])))
