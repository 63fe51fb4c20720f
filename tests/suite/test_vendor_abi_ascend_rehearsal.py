"""What Isthmus's rehearsal declares of Huawei's libraries is what Huawei publishes: the compiler compares them.

As in test_vendor_abi.py, the files of tests/vendor are only compiled. The headers are in build/vendor-headers/ascend.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from test_vendor_abi import EXPORT, HEADERS, OURS, REHEARSAL, compile_only

ASCEND = HEADERS / "ascend"
SOURCES = sorted((REHEARSAL / "ascend").glob("*.cpp"))


@pytest.fixture(scope="module", autouse=True)
def headers() -> None:
    if (ASCEND / "acl" / "acl.h").is_file() and (ASCEND / "hccl" / "hccl.h").is_file():
        return
    reason = "no headers of Huawei's in build/vendor-headers/ascend: scripts/vendor_headers.py fetches them"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def exported(source: Path) -> list[str]:
    text = source.read_text()
    names = EXPORT.findall(text)
    assert len(names) == len(re.findall(r"^EXPORT\b", text, re.MULTILINE)), "an EXPORT that is no function with its name"
    assert len(set(names)) == len(names)
    return names


def compare(source: Path, folder: Path, ours: Path = REHEARSAL) -> str:
    """What the compiler has against `source`."""
    names = exported(source)
    (folder / "renamed.inc").write_text("".join(f"#define {name} rehearsed_{name}\n" for name in names))
    (folder / "restored.inc").write_text("".join(f"#undef {name}\n" for name in names))
    (folder / "compared.inc").write_text("".join(f"COMPARE({name})\n" for name in names))
    inside = folder / "third_party" / "hccl" / "inc"  # where Huawei's header looks for its other half
    inside.mkdir(parents=True, exist_ok=True)
    if not (inside / "hccl").exists():
        (inside / "hccl").symlink_to(ASCEND / "hccl")
    defines = [f'-DREHEARSAL_SOURCE="{source}"', *(["-DREHEARSAL_ACL"] if source.name.startswith("acl") else [])]
    # Their headers are not free of warnings: deprecated names.
    defines += ["-isystem", str(ASCEND), "-Wno-deprecated-declarations"]
    return compile_only(OURS / "ascend_rehearsal.cpp", folder, ours, defines=tuple(defines))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_rehearsals_declarations_are_the_vendors(source: Path, tmp_path: Path) -> None:
    errors = compare(source, tmp_path)
    assert not errors, errors


WRONG = [  # each breaks the declaration of one function
    ("acl_memory.cpp", "aclrtMemcpy", "void *to, size_t room,", "void *to,"),
    ("acl_memory.cpp", "aclrtHostRegisterV2", "uint64_t bytes, uint32_t flags", "uint64_t bytes"),
    ("hccl_calls.cpp", "HcclBroadcast", "int type, uint32_t root", "int type, uint64_t root"),
    ("hccl_calls.cpp", "HcclAllGather", "uint64_t count", "uint32_t count"),
]


@pytest.mark.parametrize("name", sorted({name for name, *_ in WRONG}))
def test_other_declarations_would_be_found(name: str, tmp_path: Path) -> None:
    text = (REHEARSAL / "ascend" / name).read_text()
    broken = [(function, right, wrong) for file, function, right, wrong in WRONG if file == name]
    for function, right, wrong in broken:
        before, found, declared = text.partition(f"EXPORT Result {function}(")
        assert found and right in declared, f"{function} is no longer declared so: choose another line for this test"
        text = before + found + declared.replace(right, wrong, 1)
    changed = tmp_path / name
    changed.write_text(text)
    errors = compare(changed, tmp_path)
    missed = [function for function, *_ in broken if f"{function} is declared otherwise" not in errors]
    assert not missed, errors


def test_the_numbers_are_compared(tmp_path: Path) -> None:
    abi = (REHEARSAL / "ascend" / "hccl_abi.hpp").read_text()
    for right, wrong in (("kTimeout = 9", "kTimeout = 8"), ("unsigned char bytes[4108]", "unsigned char bytes[4096]")):
        assert right in abi
        abi = abi.replace(right, wrong)
    (tmp_path / "ascend").mkdir()
    (tmp_path / "ascend" / "hccl_abi.hpp").write_text(abi)
    errors = compare(REHEARSAL / "ascend" / "hccl_absent.cpp", tmp_path)
    assert "HCCL_E_TIMEOUT" in errors and "failed: HcclRootInfo" in errors, errors
