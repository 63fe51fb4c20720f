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


WRONG = {
    "acl_memory.cpp": [
        ("size_t room, const void *from, size_t bytes, int direction)", "const void *from, size_t bytes, int direction)"),
        ("aclrtHostRegisterV2(void *host, uint64_t bytes, uint32_t flags)", "aclrtHostRegisterV2(void *host, uint64_t bytes)"),
    ],
    "hccl_calls.cpp": [
        ("HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root", "HcclBroadcast(void *buffer, uint64_t count, "
         "int type, uint64_t root"),
        ("HcclAllGather(void *from, void *to, uint64_t count", "HcclAllGather(void *from, void *to, uint32_t count"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG))
def test_other_declarations_would_be_found(name: str, tmp_path: Path) -> None:
    text = (REHEARSAL / "ascend" / name).read_text()
    for right, wrong in WRONG[name]:
        assert right in text, f"{right} is no longer in {name}: choose another line for this test"
        text = text.replace(right, wrong, 1)
    changed = tmp_path / name
    changed.write_text(text)
    errors = compare(changed, tmp_path)
    missed = []
    for right, _ in WRONG[name]:
        function = re.match(r"\w+(?=\()", right)
        complaint = f"{function[0] if function else 'aclrtMemcpy'} is declared otherwise"
        missed += [] if complaint in errors else [complaint]
    assert not missed, errors


def test_the_numbers_are_compared(tmp_path: Path) -> None:
    abi = (REHEARSAL / "ascend" / "hccl_abi.hpp").read_text()
    for right, wrong in (("kTimeout = 9", "kTimeout = 8"), ("unsigned char bytes[4108]", "unsigned char bytes[4096]")):
        assert right in abi
        abi = abi.replace(right, wrong)
    (tmp_path / "ascend").mkdir()
    (tmp_path / "ascend" / "hccl_abi.hpp").write_text(abi)
    errors = compare(REHEARSAL / "ascend" / "hccl_absent.cpp", tmp_path)
    assert "HCCL_E_TIMEOUT" in errors and "sizeof (HcclRootInfo)" in errors, errors
