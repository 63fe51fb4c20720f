"""What Isthmus declares of Huawei's libraries is what Huawei publishes: the compiler compares them.

As in test_vendor_abi.py, the files of tests/vendor are only compiled. The headers are in build/vendor-headers/ascend.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from test_vendor_abi import EXPORT, HEADERS, OURS, REHEARSAL, ROOT, compile_only, headers  # noqa: F401

ACL = ROOT / "csrc" / "device" / "acl_abi.hpp"
HCCL = ROOT / "csrc" / "ccl" / "hccl_abi.hpp"
PRODUCT = OURS / "ascend_product.cpp"
PUBLISHED = HEADERS / "ascend"

# Theirs takes an attribute that says that a function is deprecated; some of them serve older versions.
QUIET = ("-Wno-deprecated-declarations",)


def complaints(*includes: Path) -> str:
    return compile_only(PRODUCT, *includes, PUBLISHED, OURS, defines=QUIET)


def test_the_products_declarations_are_the_vendors() -> None:
    errors = complaints(ROOT / "csrc")
    assert not errors, errors


WRONG = [
    (ACL, "kAlreadyRegistered = 507910", "kAlreadyRegistered = 507911", "kAlreadyRegistered"),
    (ACL, "kEventPending = 0, kEventComplete = 1", "kEventPending = 1, kEventComplete = 0", "kEventComplete"),
    (ACL, "kRegisterV2Pinned = 0x10000000", "kRegisterV2Pinned = 0x1", "kRegisterV2Pinned"),
    (ACL, "size_t room, const void *, size_t,", "const void *, size_t,", "aclrtMemcpyAsync is declared otherwise"),
    (ACL, "F(aclrtFree, (void *))", "F(aclrtFree, (size_t))", "aclrtFree is declared otherwise"),
    (ACL, "int block, Handle stream))", "Handle stream, int block))", "aclrtLaunchCallback is declared otherwise"),
    (ACL, "int type = kAtNobody;", "int64_t type = kAtNobody;", "offsetof"),
    (ACL, "char parts[4][64]", "char parts[3][64]", "reserved"),
    (HCCL, "kIdBytes = 4108", "kIdBytes = 4096", "kIdBytes"),
    (HCCL, "kFloat16 = 3, kFloat32 = 4", "kFloat16 = 6, kFloat32 = 7", "kFloat32"),
    (HCCL, "uint32_t root, Handle, Queue))  ", "Handle, Queue))  ", "HcclReduce is declared otherwise"),
    (HCCL, "F(CommDestroy, (Handle))", "F(CommDestroy, (Handle, int))", "HcclCommDestroy is declared otherwise"),
]


def test_wrong_declarations_are_found(tmp_path: Path) -> None:
    for header in (ACL, HCCL):
        text = header.read_text()
        for place, right, wrong, _ in WRONG:
            if place == header:
                assert right in text, f"{right} is no longer in {header.name}: choose another line for this test"
                text = text.replace(right, wrong)
        changed = tmp_path / header.relative_to(ROOT / "csrc")
        changed.parent.mkdir()
        changed.write_text(text)
    errors = complaints(tmp_path, ROOT / "csrc")
    missed = [wrong for _, _, wrong, complaint in WRONG if complaint not in errors]
    assert not missed, errors


@pytest.mark.parametrize("name", ["acl", "hccl"])
def test_every_function_is_published(name: str) -> None:
    """Under the name by which it is looked up: none is a macro or an inline function of the headers."""
    text = "\n".join(path.read_text(errors="replace") for path in (PUBLISHED / name).rglob("*.h"))
    source, prefix = (ACL, "") if name == "acl" else (HCCL, "Hccl")
    functions = [prefix + found for found in re.findall(r"\bF\((\w+),", source.read_text())]
    assert len(functions) > 10
    declared = r"(?:ACL_FUNC_VISIBILITY|extern)\s[^;{{}}()]*?\b{}\s*\("
    assert not [f for f in functions if not re.search(declared.format(f), text)]


# Not in the simulation: a stream of it stops at a failure always, and it is no package with a version.
UNREHEARSED = {"aclrtSetStreamFailureMode", "aclsysGetCANNVersion"}


def test_every_function_is_rehearsed() -> None:
    rehearsed = {name for path in (REHEARSAL / "ascend").glob("*.cpp") for name in EXPORT.findall(path.read_text())}
    used = {f"{prefix}{found}" for source, prefix in ((ACL, ""), (HCCL, "Hccl"))
            for found in re.findall(r"\bF\((\w+),", source.read_text())}  # fmt: skip
    assert used - rehearsed <= UNREHEARSED
