#!/usr/bin/env python3
"""Puts vLLM's own wrappers of NCCL into the folder that is given, one folder a version: a client for the interposer's tests.

Of each version's wheel, 190 to 340 MB, only the directory and the files themselves are fetched, below 1 MB, by ranges of
bytes. pip says where the wheels are. The versions differ in which functions the wrapper has, and how it treats one that is
missing. Standard library only.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The first with what all later ones begin with; one with all collectives; the first with windows; the newest.
VERSIONS = ("0.6.3", "0.8.5", "0.11.2", "0.33.0")
WRAPPER = "vllm/distributed/device_communicators/pynccl_wrapper.py"
# Which file it opens, where that is a module of its own: what reads VLLM_NCCL_SO_PATH.
FINDER = "vllm/utils/nccl.py"
PLATFORMS = ("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64")


def complete(folder: Path) -> bool:
    return all((folder / version / WRAPPER).is_file() for version in VERSIONS)


class Remote(io.RawIOBase):
    """A file that a server has."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as said:
            self.size = int(said.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        self.at = to + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, place) -> int:  # type: ignore[no-untyped-def]
        last = min(self.at + len(place), self.size) - 1
        if last < self.at:
            return 0
        wanted = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{last}"})
        with urllib.request.urlopen(wanted, timeout=60) as said:
            if said.status != 206:
                raise SystemExit("vllm_wrappers: the index does not give parts of a wheel")
            data = said.read()
        place[: len(data)] = data
        self.at += len(data)
        return len(data)


def address(version: str) -> str:
    """Of the wheel. pip reads what it says of itself, and fetches nothing more."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--no-cache-dir",
        "--report",
        "-",
    ]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    with tempfile.TemporaryDirectory() as nowhere:
        command += ["--only-binary", ":all:", "--ignore-installed", "--target", nowhere, f"vllm=={version}"]
        told = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout
    return str(json.loads(told)["install"][0]["download_info"]["url"])


def assemble(folder: Path) -> None:
    with ThreadPoolExecutor() as threads:
        places = list(threads.map(address, VERSIONS))
    for version, place in zip(VERSIONS, places, strict=True):
        with zipfile.ZipFile(io.BufferedReader(Remote(place), 1 << 18)) as wheel:
            for name in {WRAPPER, FINDER} & set(wheel.namelist()):
                target = folder / version / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(name))
    if not complete(folder):
        raise SystemExit("vllm_wrappers: the wheels no longer hold the wrapper")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: vllm_wrappers.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(Path(sys.argv[1]))
