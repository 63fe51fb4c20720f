"""Vendors' libraries as a process may find them: whole, with a function missing, of an old version, of another kind, or no
library at all. Made of the functions that csrc/*_abi.hpp declares; each returns 0, but those that tell something."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from patience import patient

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FUNCTION = re.compile(r"\bF\((\w+),")

# What a library tells is in the environment: FILES_VERSION, and FILES_CODE for the call that counts or starts the devices.
TELLS = """
#include <stdlib.h>
#include <string.h>
static int number(const char *name) { const char *v = getenv(name); return v ? atoi(v) : 0; }
"""
VERSION = 'int {}(int *v) {{ *v = number("FILES_VERSION"); return 0; }}\n'


@dataclass(frozen=True)
class Library:
    name: str
    file: str
    header: str  # in csrc
    prefix: str  # of the functions in it
    more: tuple[str, ...]  # functions that no row of the header's table has
    special: dict[str, str]  # functions that do more than return 0
    absent: str  # that is missing where one is
    old: str  # what an old version says
    says: str  # how that is told
    install: str  # what the user is told to install
    vendor: str = ""  # whose devices it serves

    @property
    def settings(self) -> dict[str, str]:
        """With which a rank needs it."""
        if self.name in DEVICES:
            return {"DEVICE": self.name}
        return {"CCL": self.name, **({"DEVICE": self.vendor} if self.vendor else {})}

    @property
    def without(self) -> dict[str, str]:
        """With which a rank goes on without it."""
        if self.name in DEVICES:
            return {"DEVICE": "host"}
        return {"DEVICE": self.vendor, "CCL": "auto"} if self.vendor else {"CCL": "none"}

    def build(self, target: Path, *, absent: str = "") -> None:
        names = [self.prefix + name for name in FUNCTION.findall((CSRC / self.header).read_text())] + list(self.more)
        assert len(names) > 10 and (not absent or absent in names), names
        source = target.with_suffix(".c")
        plain = [f"int {name}(void) {{ return 0; }}\n" for name in names if name not in self.special and name != absent]
        told = [text for name, text in self.special.items() if name != absent]
        source.write_text(TELLS + "".join(plain + told))
        compile_library(source, target)


def compile_library(source: Path, target: Path) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(target)], check=True, timeout=patient(60))


def _nccl(name: str, file: str, vendor: str, install: str) -> Library:
    return Library(
        name, file, "ccl/nccl_abi.hpp", "nccl", (), {"ncclGetVersion": VERSION.format("ncclGetVersion")}, "ncclAllReduce",
        "21304", "version 2.13.4", install, vendor,
    )  # fmt: skip


DEVICES = ("cuda", "hip", "acl")
COUNT = 'int {}(int *n) {{ *n = 1; return number("FILES_CODE"); }}\n'
LIBRARIES = [
    Library(
        "cuda", "libcuda.so.1", "device/cuda_abi.hpp", "", (),
        {"cuInit": 'int cuInit(unsigned flags) { return number("FILES_CODE"); }\n',
         "cuDeviceGetCount": COUNT.format("cuDeviceGetCount"),
         "cuDriverGetVersion": VERSION.format("cuDriverGetVersion")},
        "cuStreamWaitValue64_v2", "10020", "for CUDA 10.2", "install a driver for CUDA 11.7 or newer",
    ),
    Library(
        "hip", "libamdhip64.so.6", "device/hip_abi.hpp", "", ("hipGetErrorName", "hipGetErrorString"),
        {"hipGetDeviceCount": COUNT.format("hipGetDeviceCount"),
         "hipRuntimeGetVersion": VERSION.format("hipRuntimeGetVersion")},
        "hipStreamWaitValue64", "40321831", "version 4.3", "install ROCm 5.0 or newer",
    ),
    Library(  # old is what lacks a function
        "acl", "libascendcl.so", "device/acl_abi.hpp", "", ("aclrtGetSocName",),
        {"aclrtGetDeviceCount": COUNT.format("aclrtGetDeviceCount"),
         "aclsysGetCANNVersion": "int aclsysGetCANNVersion(int package, char *text) "
                                 '{ strcpy(text, getenv("FILES_VERSION")); return 0; }\n'},
        "aclrtMemcpyAsync", "6.0.RC1", "version CANN 6.0.RC1", "install CANN 8.3 or newer",
    ),
    _nccl("nccl", "libnccl.so.2", "cuda", "install NVIDIA's NCCL 2.14.0 or newer"),
    _nccl("rccl", "librccl.so.1", "hip", "install AMD's RCCL 2.14.0 or newer"),
    Library(  # likewise; the runtime tells the version
        "hccl", "libhccl.so", "ccl/hccl_abi.hpp", "Hccl", (), {}, "HcclCommInitRootInfo", "", "(version ",
        "install Huawei's CANN 8.0 or newer", "acl",
    ),
    Library(
        "oneccl", "libccl.so.2", "ccl/oneccl_abi.hpp", "oneccl", (),
        {"onecclGetVersion": VERSION.format("onecclGetVersion")},
        "onecclAllToAll", "20211402", "version 2021.14.2", "install oneCCL 2022.1.0 or newer",
    ),
]  # fmt: skip
