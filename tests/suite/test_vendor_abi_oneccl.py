"""What Isthmus declares of oneCCL is what Intel publishes: the compiler compares them.

As in test_vendor_abi.py, the files of tests/vendor are only compiled. The headers are in build/vendor-headers/oneccl: of the
version that the tests run, and of the oldest that is taken.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from test_vendor_abi import HEADERS, OURS, ROOT, compile_only, headers  # noqa: F401

ONECCL = ROOT / "csrc" / "ccl" / "oneccl_abi.hpp"
PRODUCT = OURS / "oneccl_product.cpp"
LIBRARY = ROOT / "build" / "oneccl" / "libccl.so.2"
VERSIONS = ("newest", "oldest")


def complaints(version: str, *includes: Path) -> str:
    defines = ("-DONECCL_IS_OLDEST",) if version == "oldest" else ()
    return compile_only(PRODUCT, *includes, OURS, HEADERS / "oneccl" / version, defines=defines)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_products_declarations_are_the_vendors(version: str) -> None:
    errors = complaints(version, ROOT / "csrc")
    assert not errors, errors


WRONG = [
    ("kIdBytes = 4096", "kIdBytes = 128", "kIdBytes"),
    ("kUInt8, ", "", "kFloat32"),
    ("kFloat64, kBFloat16 }", "kFloat64, kBFloat16 = 11 }", "kBFloat16"),
    ("{ kSum, kProd, kMax, kMin }", "{ kSum, kProd, kMin, kMax }", "kMax"),
    ('"GPU failure", ', '"timeout", "GPU failure", ', "onecclNotImplemented"),
    ("major * 10000", "major * 1000", "version_code"),
    ("size_t ranks, Id, int rank", "int ranks, Id, int rank", "onecclCommInitRank is declared otherwise"),
    ("F(AllToAll, (const void *, void *, size_t, ", "F(AllToAll, (const void *, void *, ", "onecclAllToAll is declared"),
    ("F(CommDestroy, (Handle))", "F(CommDestroy, (Handle *, int))", "onecclCommDestroy is declared otherwise"),
    ("(*GetLastError)(Handle)", "(*GetLastError)()", "onecclGetLastError is declared otherwise"),
]


def test_wrong_declarations_are_found(tmp_path: Path) -> None:
    text = ONECCL.read_text()
    for right, wrong, _ in WRONG:
        assert right in text, f"{right} is no longer in {ONECCL.name}: choose another line for this test"
        text = text.replace(right, wrong)
    changed = tmp_path / "ccl" / ONECCL.name
    changed.parent.mkdir()
    changed.write_text(text)
    errors = complaints("newest", tmp_path)
    missed = [wrong for _, wrong, complaint in WRONG if complaint not in errors]
    assert not missed, errors


def test_a_version_that_the_oldest_headers_are_not_of_is_found(tmp_path: Path) -> None:
    text = ONECCL.read_text()
    changed = tmp_path / "ccl" / ONECCL.name
    changed.parent.mkdir()
    changed.write_text(text.replace("version_code(2022, 1, 0);", "version_code(2022, 0, 0);"))
    assert "kLeastVersion" in complaints("oldest", tmp_path)


@pytest.mark.skipif(not LIBRARY.exists(), reason="no oneCCL for this machine")
def test_every_function_is_in_the_library_under_its_plain_name() -> None:
    functions = re.findall(r"\bF\((\w+),", ONECCL.read_text())
    assert len(functions) > 10
    table = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1] for line in table.splitlines()}
    assert not [name for name in (*functions, "GetLastError") if f"oneccl{name}" not in exported]
