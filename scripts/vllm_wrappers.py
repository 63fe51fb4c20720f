#!/usr/bin/env python3
"""Puts vLLM's own wrappers of NCCL into the folder that is given, one folder a version: a client for the interposer's tests.

Of each version's wheel, 190 to 340 MB, only the directory and the files themselves are fetched, below 1 MB, by ranges of
bytes. pip says where the wheels are; what each file is, is known by its digest. The versions differ in which functions the
wrapper has, and how it treats one that is missing. Standard library only.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wheels import tried

WRAPPER = "vllm/distributed/device_communicators/pynccl_wrapper.py"
# Which file it opens, where that is a module of its own: what reads VLLM_NCCL_SO_PATH.
FINDER = "vllm/utils/nccl.py"
# The first with what all later ones begin with; one with all collectives; the first with windows; the newest.
SHA256 = {
    "0.6.3": {WRAPPER: "1fc9a348acc5cc93fd1b77007b70571d2897339d8685d9d28fa0ff2185e91887"},
    "0.8.5": {WRAPPER: "dc9d1dc87e3b04a0b8b451a421a4a825ed37dd6a229942eaf5274cefa2ea3132"},
    "0.11.2": {
        WRAPPER: "886eb4db0da0a993b0ba150b28ffcf176cb024137e643704d758c91107610192",
        FINDER: "21d661152e151ba4ad47a3917fc4b0248688d080b16047f5ec001f112942be40",
    },
    "0.33.0": {
        WRAPPER: "3caa616958b89744620b2309212e4f2c270ada68cb29ab1f148cfce89e294e22",
        FINDER: "eb883fe485edd2e1cdec4e141a73f2cbf76acc3a22af063ab6fdf69263d8dc48",
    },
}
VERSIONS = tuple(SHA256)
PLATFORMS = ("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64")


def complete(folder: Path) -> bool:
    return all((folder / version / name).is_file() for version, files in SHA256.items() for name in files)


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


def take(folder: Path, version: str) -> None:
    with zipfile.ZipFile(io.BufferedReader(Remote(address(version)), 1 << 18)) as wheel:
        for name, digest in SHA256[version].items():
            data = wheel.read(name)
            if hashlib.sha256(data).hexdigest() != digest:
                raise SystemExit(f"vllm_wrappers: {name} of vLLM {version} is not the file that is known")
            target = folder / version / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def assemble(folder: Path) -> None:
    failures = (subprocess.CalledProcessError, OSError, http.client.HTTPException, zipfile.BadZipFile)
    with ThreadPoolExecutor() as several:
        list(several.map(lambda version: tried(lambda: take(folder, version), *failures), VERSIONS))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: vllm_wrappers.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(Path(sys.argv[1]))
