#!/usr/bin/env python3
"""Puts the vendors' published declarations together, in the folder that is given: what tests/vendor reads.

Nothing of Isthmus is built with them, and none is kept in the tree. wheels.py has the digests of all wheels; of Debian's
package the system looks at the signature. Standard library only.

NVIDIA's headers come from PyPI's wheels: nccl.h includes the runtime's headers, those the compiler's (crt/) and one of the
C++ libraries' (nv/target). So 6 MB are taken from four wheels of 312 MB, of which NCCL itself is nearly all. That is kept,
too (nccl/libnccl.so.2, 344 MB, for x86-64), and so is the oldest that the interposer stands before, of a wheel of 166 MB
(nccl/oldest/libnccl.so.2, 219 MB): libraries of a vendor's own, which the interposer's tests run without a device.

Of AMD's there are two: the header of HIP 5.2, from Debian's package (hip5/), and AMD's own bindings of HIP 7 for Python,
from PyPI (rocm/), which say every signature in text, and every number to whoever imports them.

Huawei's are in the wheel of its extension of PyTorch, on PyPI: the runtime's (ascend/acl) and the collective library's
(ascend/hccl), 1 MB of 43. Wheels of that name are for one version of Python each; the headers are the same in all.

Intel's are those of oneCCL's C interface, of the version that the tests run and of the oldest that is taken (oneccl/newest,
oneccl/oldest): two files of each wheel's 30 MB.

And one client, which is a program and no header: CuPy (cupy/), whose arrays and whose module for NCCL the tests use. It is
for this machine and this Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import wheels

NCCL, OLDEST_NCCL = "nvidia-nccl-cu13==2.32.3", "nvidia-nccl-cu12==2.19.3"
# The library in those wheels, and where each goes: beside the headers, and not among them.
NCCL_INSIDE = "nvidia/nccl/lib/libnccl.so.2"
NCCL_LIBRARIES = {NCCL: "nccl/libnccl.so.2", OLDEST_NCCL: "nccl/oldest/libnccl.so.2"}
# The wheel, the folder inside, and how the names begin of the files that are taken out of it.
PIECES = {
    "nvidia-cuda-runtime==13.5.37": ("nvidia/cu13/include/", ""),
    "nvidia-cuda-crt==13.5.37": ("nvidia/cu13/include/", "crt/"),
    "nvidia-cuda-cccl==13.3.5.0.6": ("nvidia/cu13/include/", "nv/"),
    NCCL: ("nvidia/nccl/include/", "nccl.h"),
    "rocm-bindings-core==10.0.0.0.1.2": ("", "rocm/"),
    "rocm-bindings-hip==10.0.0.0.1.2": ("", "rocm/"),
    "rocm-bindings-systems==10.0.0.0.1.2": ("", "rocm/"),
}
# The same of Huawei's: what is behind third_party/X/inc/ goes to ascend/, where it is found by that name, too.
ASCEND = "torch-npu==2.13.0"
ASCEND_INSIDE = {name: f"torch_npu/include/third_party/{name}/inc/" for name in ("acl", "hccl")}
ASCEND_PYTHON = ("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311")
# And of Intel's.
ONECCL = {"newest": "oneccl-devel==2022.2.0", "oldest": "oneccl-devel==2022.1.0"}
ONECCL_FILES = ("oneapi/ccl.h", "oneapi/ccl/v2/types.h")
SOURCES = (".pyx", ".pyi")  # of the bindings: nobody reads them
# CuPy, less what it compiles kernels with, and what it looks for libraries with.
CUPY = {
    "cupy-cuda13x==14.2.0": ("cupy/", "cupyx/", "cupy_backends/"),
    "cuda-pathfinder==1.9.0": ("cuda/pathfinder/",),
}
CUPY_UNUSED = "/include/"
# Of each wheel the ones that tests read, themselves or through another, or run.
NEEDED = ("cuda.h", "cudaTypedefs.h", "cuda_runtime.h", "cuda_fp16.h", "crt/host_config.h", "nv/target", "nccl.h") + (
    *NCCL_LIBRARIES.values(),
    "rocm/bindings/cyhip.pxd",
    "rocm/bindings/cyrccl.pxd",
    "ascend/acl/acl.h",
    "ascend/hccl/hccl.h",
    *(f"oneccl/{which}/{name}" for which in ONECCL for name in ONECCL_FILES),
    "cupy/cupy/__init__.py",
    "cupy/cupy_backends/cuda/libs/__init__.py",
    "cupy/cuda/pathfinder/__init__.py",
)
# The headers are the same for every machine: these wheels are taken on all of them.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

PACKAGE = "libamdhip64-dev"
HIP5 = "hip5/hip/hip_runtime_api.h"


def has_packages() -> bool:
    """Whether this system has Debian's packages. Without them there is no header of HIP 5."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None


def complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (*NEEDED, *([HIP5] if has_packages() else [])))


def download(downloads: str, *requirements: str, words: tuple[str, ...] = ()) -> dict[str, Path]:
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    return wheels.download(downloads, requirements, *platforms, *words)


def take_ascend(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        found = download(downloads, ASCEND, words=ASCEND_PYTHON)
        with zipfile.ZipFile(found[ASCEND]) as wheel:
            for library, inside in ASCEND_INSIDE.items():
                by_name = folder / "ascend" / "third_party" / library / "inc"
                by_name.parent.mkdir(parents=True, exist_ok=True)
                by_name.unlink(missing_ok=True)
                by_name.symlink_to(Path("..") / "..")
                for name in wheel.namelist():
                    if name.startswith(f"{inside}{library}/") and not name.endswith("/"):
                        target = folder / "ascend" / name.removeprefix(inside)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(wheel.read(name))


def take_oneccl(folder: Path, which: str) -> None:
    requirement = ONECCL[which]
    with tempfile.TemporaryDirectory() as downloads, zipfile.ZipFile(download(downloads, requirement)[requirement]) as wheel:
        for name in ONECCL_FILES:
            target = folder / "oneccl" / which / name
            target.parent.mkdir(parents=True, exist_ok=True)
            inside = f"{requirement.replace('-', '_').replace('==', '-')}.data/data/include/{name}"
            target.write_bytes(wheel.read(inside))


def take_wheels(folder: Path, *requirements: str) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        for requirement, path in download(downloads, *requirements).items():
            inside, begin = PIECES[requirement]
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if name.startswith(inside + begin) and not name.endswith(("/", *SOURCES)):
                        target = folder / name.removeprefix(inside)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(wheel.read(name))
                if requirement == NCCL:
                    take_nccl(wheel, folder / NCCL_LIBRARIES[NCCL])


def take_nccl(wheel: zipfile.ZipFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(NCCL_INSIDE) as library, open(target, "wb") as file:  # too large to hold in memory
        shutil.copyfileobj(library, file)


def take_oldest_nccl(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads, zipfile.ZipFile(download(downloads, OLDEST_NCCL)[OLDEST_NCCL]) as wheel:
        take_nccl(wheel, folder / NCCL_LIBRARIES[OLDEST_NCCL])


def take_cupy(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        for requirement, path in wheels.download(downloads, list(CUPY)).items():
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if name.startswith(CUPY[requirement]) and CUPY_UNUSED not in name and not name.endswith("/"):
                        target = folder / "cupy" / name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(wheel.read(name))


def take_package(folder: Path) -> None:
    """Unpacked only: nothing is installed."""
    with tempfile.TemporaryDirectory() as downloads:

        def said_no(*words: str) -> str:
            ended = subprocess.run(words, cwd=downloads, text=True, capture_output=True, stdin=subprocess.DEVNULL)
            return ended.stderr or f"exit status {ended.returncode}" if ended.returncode else ""

        fetch = ("apt-get", "-o", "Acquire::Retries=3", "download", PACKAGE)
        if said_no(*fetch) and os.geteuid() == 0:  # the lists of packages may be missing or old
            said_no("apt-get", "update")
        if not list(Path(downloads).glob("*.deb")) and (error := said_no(*fetch)):
            raise SystemExit(f"vendor_headers: {' '.join(fetch)}: {error}")
        (package,) = Path(downloads).glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, downloads], check=True)
        shutil.copytree(Path(downloads) / "usr" / "include", folder / "hip5", dirs_exist_ok=True)


def assemble(folder: Path) -> None:
    others = [requirement for requirement in PIECES if requirement != NCCL]
    tasks = [lambda: take_wheels(folder, NCCL), lambda: take_wheels(folder, *others), lambda: take_ascend(folder)]
    tasks += [lambda: take_oldest_nccl(folder), lambda: take_cupy(folder)]
    tasks += [lambda which=which: take_oneccl(folder, which) for which in ONECCL]
    if has_packages():
        tasks.append(lambda: take_package(folder))
    with ThreadPoolExecutor(len(tasks)) as several:  # they wait for the network
        for done in [several.submit(task) for task in tasks]:
            done.result()
    if not complete(folder):
        missing = ", ".join(name for name in (*NEEDED, HIP5) if not (folder / name).is_file())
        raise SystemExit(f"vendor_headers: the wheels and packages no longer hold {missing}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: vendor_headers.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(Path(sys.argv[1]))
