#!/usr/bin/env python3
"""Puts NVIDIA's published headers together from PyPI's wheels, in the folder that is given: what tests/vendor reads.

Nothing of Isthmus is built with them, and none is kept in the tree. nccl.h includes the runtime's headers, those the
compiler's (crt/) and one of the C++ libraries' (nv/target). So 6 MB are taken from four wheels of 312 MB, of which NCCL
itself is nearly all. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The wheel, the folder of headers inside, and how the names begin of those that are taken out of it.
PIECES = {
    "nvidia-cuda-runtime==13.5.37": ("nvidia/cu13/include/", ""),
    "nvidia-cuda-crt==13.5.37": ("nvidia/cu13/include/", "crt/"),
    "nvidia-cuda-cccl==13.3.5.0.6": ("nvidia/cu13/include/", "nv/"),
    "nvidia-nccl-cu13==2.32.3": ("nvidia/nccl/include/", "nccl.h"),
}
# Of each wheel the ones that tests/vendor reads, itself or through another.
NEEDED = ("cuda.h", "cudaTypedefs.h", "cuda_runtime.h", "cuda_fp16.h", "crt/host_config.h", "nv/target", "nccl.h")
# The headers are the same for every machine: these wheels are taken on all of them.
PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def assemble(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", downloads]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, *PIECES], check=True, stdin=subprocess.DEVNULL)
        wheels = {path.name.split("-")[0].replace("_", "-"): path for path in Path(downloads).glob("*.whl")}
        for requirement, (inside, begin) in PIECES.items():
            with zipfile.ZipFile(wheels[requirement.split("==")[0]]) as wheel:
                for name in wheel.namelist():
                    if name.startswith(inside + begin) and not name.endswith("/"):
                        target = folder / name.removeprefix(inside)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(wheel.read(name))
    if not complete(folder):
        missing = ", ".join(name for name in NEEDED if not (folder / name).is_file())
        raise SystemExit(f"vendor_headers: the wheels no longer hold {missing}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: vendor_headers.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(Path(sys.argv[1]))
