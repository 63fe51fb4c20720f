"""What Isthmus's rehearsal declares of AMD's libraries is what AMD publishes: the compiler compares them.

As in test_vendor_abi.py, the files of tests/vendor are only compiled. HIP 5 is compared with its header. Of HIP 7 and RCCL
there is no header to be had, but AMD's bindings for Python (build/vendor-headers/rocm): their .pxd files have every
signature and struct, their modules every number, and of both a header is made here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from test_vendor_abi import EXPORT, HEADERS, OF_THREAD, OURS, REHEARSAL, compile_only, headers, vendor_headers  # noqa: F401

HIP = sorted((REHEARSAL / "amd").glob("*.cpp"))
RCCL = sorted((REHEARSAL / "nccl").glob("*.cpp"))
PRODUCT = OURS.parents[1] / "csrc" / "device" / "hip_abi.hpp"
PRODUCT_COMPARED = OURS / "amd_product.cpp"
BINDINGS = HEADERS / "rocm" / "bindings"

# Printed by a process of its own, because the bindings' modules are large: the numbers of enums, and those of none.
NUMBERS = """
import enum, json
from rocm.bindings import hip, rccl
enums, others = {}, {}
for module in (hip, rccl):
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, enum.Enum):
            enums[name] = {n: int(v) for n, v in value.__members__.items()}
        elif type(value) is int:
            others[name] = value
print(json.dumps([enums, others]))
"""


def needs_header_of_hip5() -> None:
    if not vendor_headers.has_packages():
        pytest.skip("no header of HIP 5: this system has no Debian packages")


@cache
def numbers() -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    if platform.machine() != "x86_64":
        pytest.skip("AMD's bindings are modules for x86-64")
    environment = {**os.environ, "PYTHONPATH": str(HEADERS)}
    asked = [sys.executable, "-c", NUMBERS]
    ended = subprocess.run(asked, env=environment, text=True, capture_output=True, check=True, timeout=240)
    enums, others = json.loads(ended.stdout)
    return enums, others


# Types that amd_rehearsal.cpp looks at, whichever functions it compares.
TYPES = ["hipError_t", "hipMemoryType", "hipMemcpyKind", "hipDeviceAttribute_t", "hipStreamCaptureStatus"]
TYPES += ["hipStreamCaptureMode", "hipPointerAttribute_t", "hipUUID_t"]
TYPES += ["ncclResult_t", "ncclDataType_t", "ncclRedOp_t", "ncclUniqueId", "ncclConfig_v22800"]


@dataclass(frozen=True)
class Declared:
    """What the bindings declare, by its name."""

    functions: dict[str, tuple[str, str]]  # the result, and the parameters
    structs: dict[str, list[str]]  # the fields
    pointers: dict[str, str]  # to functions
    others: dict[str, str]  # what the name stands for


@cache
def declared() -> Declared:
    text = "\n".join((BINDINGS / name).read_text() for name in ("cyhip.pxd", "cyrccl.pxd"))

    def first(pattern: str) -> Iterator[re.Match[str]]:
        """The first of each name."""
        names: set[str] = set()
        for found in re.finditer(pattern, text, re.MULTILINE):
            if found["name"] not in names:
                names.add(found["name"])
                yield found

    functions = first(r"^cdef (.+?)\b(?P<name>\w+)\((.*)\) (?:except|noexcept)")
    structs = first(r"^    (?:cdef|ctypedef) struct (?P<name>\w+):\n((?:        .*\n)+)")
    fields = {found["name"]: [line.strip() for line in found[2].splitlines()] for found in structs}
    return Declared(
        {found["name"]: (found[1], found[3]) for found in functions},
        {name: [line for line in lines if line != "pass"] for name, lines in fields.items()},
        {found["name"]: found[1] for found in first(r"^    ctypedef (.*\(\*(?P<name>\w+)\) ?\(.*\))$")},
        {found["name"]: found[1] for found in first(r"^    ctypedef ([^()\n]*?[ *])(?P<name>\w+)$")},
    )


class Published:
    """A header for these functions, as the bindings have them: each with the types that it needs before it."""

    def __init__(self, functions: list[str]) -> None:
        self.enums, others = numbers()
        self.known: set[str] = set()
        self.types: list[str] = []
        for name in TYPES:
            self.declare(name)
        prototypes = []
        for function in functions:
            assert function in declared().functions, f"AMD's bindings do not know {function}"
            result, parameters = declared().functions[function]
            self.declare_all(result, parameters)
            prototypes.append(f'extern "C" {result} {function}({parameters});')
        constants = [f"constexpr long long {name} = {value}LL;" for name, value in others.items()]
        self.header = "\n".join(["#include <cstddef>", "#include <cstdint>", *self.types, *constants, *prototypes]) + "\n"

    def declare(self, name: str) -> None:
        """If it is the name of a type of theirs."""
        if name in self.known:
            return
        self.known.add(name)
        if name in self.enums:
            values = self.enums[name]
            kind = "int" if min(values.values()) < 0 or max(values.values()) < 2**31 else "unsigned"
            listed = ", ".join(f"{n} = {v}" for n, v in values.items())
            self.types.append(f"enum {name} : {kind} {{ {listed} }};")
        elif name in declared().structs:
            fields = declared().structs[name]
            self.declare_all(*fields)
            self.types.append(f"struct {name} {{ {' '.join(field + ';' for field in fields)} }};")
        elif name in declared().pointers:
            self.types.append(f"typedef {declared().pointers[name]};")
        elif name in declared().others:
            self.declare_all(declared().others[name])
            self.types.append(f"typedef {declared().others[name]} {name};")

    def declare_all(self, *texts: str) -> None:
        """The types that are named in them."""
        for word in re.findall(r"\w+", " ".join(texts)):
            self.declare(word)


def exported(source: Path, major: int) -> list[str]:
    """The functions of `source` in the library of that version."""
    text = source.read_text()
    older = r"^#if REHEARSAL_NCCL_VERSION >= .*\n(?:.*\n)*?#endif\n"  # what RCCL is too old for
    text = re.sub(older, "", text, flags=re.MULTILINE)
    parts = re.split(r"^#if HIP_MAJOR >= (\d+).*\n((?:.*\n)*?)#endif\n", text, flags=re.MULTILINE)
    kept = parts[0]
    for least, inside, behind in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        kept += (inside if major >= int(least) else "") + behind
    names = EXPORT.findall(kept)
    assert len(names) == len(re.findall(r"^EXPORT\b", kept, re.MULTILINE)), "an EXPORT that is no function with its name"
    names += [name for plain, _ in OF_THREAD.findall(kept) for name in (plain, f"{plain}_spt")]
    assert len(set(names)) == len(names)
    return names


def complaints(source: Path, major: int, folder: Path, published: str = "") -> str:
    """What the compiler has against `source`, compared with HIP `major`."""
    names = exported(source, major)
    (folder / "renamed.inc").write_text("".join(f"#define {name} rehearsed_{name}\n" for name in names))
    (folder / "restored.inc").write_text("".join(f"#undef {name}\n" for name in names))
    (folder / "compared.inc").write_text("".join(f"COMPARE({name})\n" for name in names))
    if major > 5:
        (folder / "published.inc").write_text(published or Published(names).header)
    defines = [f'-DREHEARSAL_SOURCE="{source}"', f"-DHIP_MAJOR={major}", "-D__HIP_PLATFORM_AMD__"]
    if source.parent.name == "nccl":
        defines += ["-DREHEARSAL_NCCL_VERSION=22203", '-DREHEARSAL_NCCL_LIBRARY="RCCL"']
    vendors = [HEADERS / "hip5"] if major == 5 else []
    return compile_only(OURS / "amd_rehearsal.cpp", folder, REHEARSAL, *vendors, defines=tuple(defines))


@pytest.mark.parametrize("source", HIP, ids=lambda path: path.name)
def test_the_rehearsal_of_hip_5_is_the_vendors(source: Path, tmp_path: Path) -> None:
    needs_header_of_hip5()
    errors = complaints(source, 5, tmp_path)
    assert not errors, errors


@pytest.mark.parametrize("source", [*HIP, *RCCL], ids=lambda path: path.name)
def test_the_rehearsal_of_hip_7_and_rccl_is_the_vendors(source: Path, tmp_path: Path) -> None:
    errors = complaints(source, 7, tmp_path)
    assert not errors, errors


WRONG = [
    ("flags,uint32_t mask", "flags", "hipStreamWaitValue32"),
    ("flags,uint64_t mask", "flags,uint16_t mask", "hipStreamWaitValue64"),
    ("hipStreamIsCapturing(hipStream_t stream,", "hipStreamIsCapturing(int stream,", "hipStreamIsCapturing"),
    ("hipErrorNotReady = 600", "hipErrorNotReady = 601", "hipErrorNotReady"),
    ("hipErrorCapturedEvent = 907", "hipErrorCapturedEvent = 906", "hipErrorCapturedEvent"),
]


def test_other_declarations_would_be_found(tmp_path: Path) -> None:
    source = REHEARSAL / "amd" / "hip_stream.cpp"
    text = Published(exported(source, 7)).header
    for right, wrong, _ in WRONG:
        assert right in text, f"{right} is no longer published: choose another line for this test"
        text = text.replace(right, wrong)
    errors = complaints(source, 7, tmp_path, text)
    missed = [wrong for _, wrong, complaint in WRONG if complaint not in errors]
    assert not missed, errors


@pytest.mark.skipif(not PRODUCT_COMPARED.exists(), reason="the product declares nothing of AMD's")
@pytest.mark.parametrize("major", [5, 7])
def test_the_products_declarations_are_the_vendors(major: int, tmp_path: Path) -> None:
    """amd_product.cpp includes hip/hip_runtime_api.h if HIP_MAJOR is 5, else published.inc, as amd_rehearsal.cpp does."""
    if major == 5:
        needs_header_of_hip5()
    else:
        (tmp_path / "published.inc").write_text(Published(functions_of_the_product()).header)
    vendors = [HEADERS / "hip5"] if major == 5 else []
    defines = (f"-DHIP_MAJOR={major}", "-D__HIP_PLATFORM_AMD__")
    errors = compile_only(PRODUCT_COMPARED, tmp_path, PRODUCT.parents[1], *vendors, defines=defines)
    assert not errors, errors


def functions_of_the_product() -> list[str]:
    others = ["hipLaunchHostFunc", "hipGetErrorName", "hipGetErrorString"]
    return [*re.findall(r"\bF\((hip\w+),", PRODUCT.read_text()), *others]


@pytest.mark.skipif(not PRODUCT.exists(), reason="the product declares nothing of AMD's")
@pytest.mark.parametrize("major", [5, 6, 7])
def test_every_function_of_the_product_is_rehearsed(major: int) -> None:
    rehearsed = {name for source in HIP for name in exported(source, major)}
    assert set(functions_of_the_product()) <= rehearsed
