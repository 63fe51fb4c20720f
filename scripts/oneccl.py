#!/usr/bin/env python3
"""Puts Intel oneCCL for CPUs together from PyPI's wheels, in the folder that is given: a vendor's real library to test with.

`pip install oneccl-cpu` gives no library that loads: its core wants a libccl.so.2 that only the GPU build's wheel holds, and
a libfabric that neither does. So 9 of the 180 MB are taken from three wheels, of which wheels.py has the digests. Standard
library only.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import wheels

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


def take(folder: Path, requirement: str) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        path = wheels.download(downloads, [requirement])[requirement]
        with zipfile.ZipFile(path) as wheel:
            for inside, place in PIECES[requirement].items():
                name = next(n for n in wheel.namelist() if n.endswith(inside))
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(name))
                target.chmod(0o755)


def assemble(folder: Path) -> None:
    with ThreadPoolExecutor() as several:
        list(several.map(lambda requirement: take(folder, requirement), PIECES))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: oneccl.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(library(Path(sys.argv[1])))
