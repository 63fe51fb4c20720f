"""What Isthmus and its rehearsal declare of NVIDIA's libraries is what NVIDIA publishes: the compiler compares them.

The files of tests/vendor are only compiled. The headers are in build/vendor-headers, where the set-up of `make test` puts
them (scripts/vendor_headers.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import vendor_headers  # noqa: E402
from kept import kept, version  # noqa: E402

HEADERS = ROOT / "build" / "vendor-headers"
OURS = ROOT / "tests" / "vendor"
CUDA = ROOT / "csrc" / "device" / "cuda_abi.hpp"
NCCL = ROOT / "csrc" / "ccl" / "nccl_abi.hpp"
REHEARSAL = ROOT / "csrc" / "rehearsal"
GXX = ("g++", "-std=c++20")
REHEARSED = sorted([*(REHEARSAL / "nvidia").glob("*.cpp"), *(REHEARSAL / "nccl").glob("*.cpp")])

# An exported function of the rehearsal: EXPORT, its result, its name.
EXPORT = re.compile(r"^EXPORT\s[^;{}()]*?\b(\w+)\s*\(", re.MULTILINE)
# One that is declared, and called by that of a longer name, in which null is the thread's stream.
OF_THREAD = re.compile(r"^OF_THREAD\((\w+), (\w*)", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def headers() -> None:
    if vendor_headers.complete(HEADERS):
        return
    reason = "no vendor's headers in build/vendor-headers: scripts/vendor_headers.py fetches them"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def standard() -> Path:
    """tests/vendor/standard.hpp, with what the compiler made of it beside it."""
    header = OURS / "standard.hpp"

    def compiled(folder: Path) -> None:
        copy = folder / header.name
        copy.write_bytes(header.read_bytes())
        subprocess.run([*GXX, "-x", "c++-header", copy, "-o", f"{copy}.gch"], check=True, timeout=240)

    return kept("standard", [*GXX, version(GXX[0]), header.read_bytes()], compiled) / header.name


def compile_only(source: Path, *includes: Path, defines: tuple[str, ...] = ()) -> str:
    """What the compiler has against `source`; empty if nothing."""
    places = [*(f"-I{path}" for path in includes), "-idirafter", str(ROOT / "csrc")]  # base/lock.hpp is there
    begin = ["-fsyntax-only", "-include", str(standard())]
    command = [*GXX, *begin, *places, "-isystem", str(HEADERS), *defines, str(source)]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=240)
    return "" if ended.returncode == 0 else ended.stderr or f"exit status {ended.returncode}"


def test_the_products_declarations_are_the_vendors() -> None:
    errors = compile_only(OURS / "nvidia_product.cpp", ROOT / "csrc")
    assert not errors, errors


WRONG = [
    (CUDA, "kAttributeNuma = 134", "kAttributeNuma = 133", "kAttributeNuma"),
    (CUDA, "F(cuMemFree_v2, (Pointer))", "F(cuMemFree_v2, (void *))", "cuMemFree_v2 is declared otherwise"),
    (CUDA, "F(cuEventQuery, (Handle))", "F(cuEventQuery, (Handle, unsigned))", "cuEventQuery is declared otherwise"),
    (CUDA, "F(cuDeviceGetCount, (int *))", "F(cuDeviceGetCount, (size_t *))", "cuDeviceGetCount is declared otherwise"),
    (CUDA, "F(cuEventDestroy_v2, ", "F(cuEventDestroy, ", "cuEventDestroy is an old variant"),
    (NCCL, "kIdBytes = 128", "kIdBytes = 64", "kIdBytes"),
    (NCCL, "  kUInt8,\n", "", "kFloat32"),
    (NCCL, "int blocking = 1;", "long blocking = 1;", "offsetof"),
    (NCCL, "int ranks, Id, int rank,", "int ranks, Id *, int rank,", "ncclCommInitRankConfig is declared otherwise"),
    (NCCL, "F(GroupEnd, ())", "F(GroupEnd, (Handle))", "ncclGroupEnd is declared otherwise"),
]


def test_wrong_declarations_are_found(tmp_path: Path) -> None:
    for header in (CUDA, NCCL):
        text = header.read_text()
        for place, right, wrong, _ in WRONG:
            if place == header:
                assert right in text, f"{right} is no longer in {header.name}: choose another line for this test"
                text = text.replace(right, wrong)
        changed = tmp_path / header.relative_to(ROOT / "csrc")
        changed.parent.mkdir()
        changed.write_text(text)
    errors = compile_only(OURS / "nvidia_product.cpp", tmp_path, ROOT / "csrc")
    missed = [wrong for _, _, wrong, complaint in WRONG if complaint not in errors]
    assert not missed, errors


def test_the_oldest_driver_that_is_taken_has_every_function() -> None:
    """cudaTypedefs.h says when a variant came: PFN_cuStreamWaitValue64_v11070 is cuStreamWaitValue64_v2, of 11.7."""
    published = (HEADERS / "cudaTypedefs.h").read_text()
    text = CUDA.read_text()
    least = re.search(r"kLeastVersion = (\d+)", text)
    assert least
    needed, optional = text.split("ISTHMUS_CUDA_OPTIONAL(F)", 1)
    functions = re.findall(r"\bF\((cu\w+),", needed)
    assert len(functions) > 20
    since = {}
    for function in functions:
        name = re.sub(r"_v\d+$", "", function)
        versions = sorted({int(version) for version in re.findall(rf"\bPFN_{name}_v(\d+)\b", published)})
        assert versions, f"cudaTypedefs.h does not know {name}"
        since[function] = versions[0] if function == name else versions[-1]
    late = {function: version for function, version in since.items() if version > int(least.group(1))}
    assert not late, f"kLeastVersion is {least.group(1)}, but these came later: {late}"
    for function in re.findall(r"\bF\((cu\w+),", optional):
        versions = {int(version) for version in re.findall(rf"\bPFN_{function}_v(\d+)\b", published)}
        assert versions and min(versions) > int(least.group(1)), f"{function} is of every driver that is taken: {versions}"


@pytest.mark.skipif(not REHEARSED, reason="no rehearsal of NVIDIA in csrc/rehearsal")
@pytest.mark.parametrize("source", REHEARSED, ids=lambda path: path.name)
def test_the_rehearsals_declarations_are_the_vendors(source: Path, tmp_path: Path) -> None:
    text = source.read_text()
    names = EXPORT.findall(text)
    assert len(names) == len(re.findall(r"^EXPORT\b", text, re.MULTILINE)), "an EXPORT that is no function with its name"
    names += [name for plain, suffix in OF_THREAD.findall(text) for name in (plain, plain + suffix)]
    assert len(set(names)) == len(names)
    (tmp_path / "renamed.inc").write_text("".join(f"#define {name} rehearsed_{name}\n" for name in names))
    (tmp_path / "restored.inc").write_text("".join(f"#undef {name}\n" for name in names))
    (tmp_path / "compared.inc").write_text("".join(f"COMPARE({name})\n" for name in names))
    is_nccl = source.parent.name == "nccl"
    defines = (
        f'-DREHEARSAL_SOURCE="{source}"',
        *(["-DREHEARSAL_NCCL_VERSION=22903", '-DREHEARSAL_NCCL_LIBRARY="NCCL"'] if is_nccl else []),
    )
    errors = compile_only(OURS / "nvidia_rehearsal.cpp", tmp_path, REHEARSAL, defines=defines)
    assert not errors, errors


def test_every_function_of_the_product_is_rehearsed() -> None:
    exported = {name for source in REHEARSED for name in EXPORT.findall(source.read_text())}
    needed = set(re.findall(r"\bF\((cu\w+),", CUDA.read_text()))
    if any(source.parent.name == "nccl" for source in REHEARSED):
        needed |= {f"nccl{name}" for name in re.findall(r"\bF\((\w+), \(", NCCL.read_text())} | {"ncclGetErrorString"}
    assert not REHEARSED or needed <= exported, sorted(needed - exported)
