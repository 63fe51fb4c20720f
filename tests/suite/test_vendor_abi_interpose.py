"""What the interposer's tables say of the vendors' functions is what the vendors publish: the compiler compares them.

As in test_vendor_abi.py, nothing of this is run. The functions that prepare kernels, and most of HCCL's that no framework
calls, are in headers that are not fetched; the table alone speaks of them.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from test_vendor_abi import HEADERS, OURS, ROOT, compile_only, headers  # noqa: F401
from test_vendor_abi_amd import BINDINGS, Published
from test_vendor_abi_ascend import PUBLISHED, QUIET

sys.path.append(str(ROOT / "scripts"))

from interpose_entries import Row, read_table  # noqa: E402

INTERPOSE = ROOT / "csrc" / "interpose"
ROWS = read_table(INTERPOSE / "nccl.symbols")
HCCL = read_table(INTERPOSE / "hccl.symbols")
FUNCTION = re.compile(r"\b(p?(?:nccl|msccl)[A-Z]\w*)\(")


NCCL_SIZES = {"UniqueId": "ncclUniqueId", "Result": "ncclResult_t", "Type": "ncclDataType_t"}
NCCL_VALUES = {
    "kSuccess": "ncclSuccess",
    "kSystemError": "ncclSystemError",
    "kInternalError": "ncclInternalError",
    "kUnhandledDeviceError": "ncclUnhandledCudaError",
    "kInvalidArgument": "ncclInvalidArgument",
    "kInvalidUsage": "ncclInvalidUsage",
    "kRemoteError": "ncclRemoteError",
    "kInProgress": "ncclInProgress",
}
HCCL_SIZES = {
    "Result": "HcclResult",
    "Type": "HcclDataType",
    "Op": "HcclReduceOp",
    "Setting": "HcclConfigValue",
    "Comm": "HcclComm",
}
HCCL_VALUES = {
    "kSuccess": "HCCL_SUCCESS",
    "kInternalError": "HCCL_E_INTERNAL",
    "kNotSupported": "HCCL_E_NOT_SUPPORT",
    "kNotFound": "HCCL_E_NOT_FOUND",
    "kRuntime": "HCCL_E_RUNTIME",
}


def comparison(rows: list[Row], abi: str, vendor: str, sizes: dict[str, str], values: dict[str, str]) -> str:
    space = "isthmus::interpose::hccl" if abi == "abi_hccl.hpp" else "isthmus::interpose"
    checks = []
    for row in rows:
        kinds = ", ".join(row.parameters)
        checks.append(
            f"static_assert(vendor::same_shape<ours::{row.name}, decltype(&::{row.name})>(),"
            f' "{row.name} is declared otherwise");'
        )
        checks.insert(0, f"namespace {space}::ours {{ using {row.name} = {row.result} (*)({kinds}); }}")
    head = f'#include "interpose/{abi}"\n{vendor}\n#include "same_shape.hpp"\n'
    for ours, theirs in sizes.items():
        head += f'static_assert(sizeof({space}::{ours}) == sizeof({theirs}), "{ours} is of another size");\n'
    for ours, theirs in values.items():
        head += f'static_assert(+{space}::{ours} == +{theirs}, "{ours} is another number");\n'
    return head + "\n".join(checks).replace("<ours::", f"<{space}::ours::")


def complaints(rows: list[Row], vendor: str, folder: Path) -> str:
    source = folder / "comparison.cpp"
    source.write_text(comparison(rows, "abi.hpp", vendor, NCCL_SIZES, NCCL_VALUES))
    return compile_only(source, folder, ROOT / "csrc", OURS, defines=("-DNCCL_OS_LINUX",))


def published_by_nvidia() -> set[str]:
    return set(FUNCTION.findall(re.sub(r"/\*.*?\*/|//[^\n]*", "", (HEADERS / "nccl.h").read_text(), flags=re.DOTALL)))


def published_by_amd() -> set[str]:
    return set(re.findall(r"^cdef .*?\b((?:nccl|msccl)[A-Z]\w*)\(", (BINDINGS / "cyrccl.pxd").read_text(), re.MULTILINE))


@pytest.mark.parametrize("library", ["nccl", "rccl"])
def test_every_function_that_is_published_is_in_the_table(library: str) -> None:
    published = published_by_nvidia() if library == "nccl" else published_by_amd()
    assert len(published) > 60
    assert published <= {name for row in ROWS if row.is_in(library) for name in row.names}


def nvidias() -> list[Row]:
    return [row for row in ROWS if row.name in published_by_nvidia()]


def amds() -> list[Row]:
    return [row for row in ROWS if row.name in published_by_amd()]


def test_the_table_is_nvidias(tmp_path: Path) -> None:
    assert len(nvidias()) > 70
    errors = complaints(nvidias(), "#include <nccl.h>", tmp_path)
    assert not errors, errors


def test_what_is_read_of_configurations_is_where_nvidia_has_it(tmp_path: Path) -> None:
    places = "size magic version blocking netName commName".split()
    of_calls = "size magic version ext algSelection forceAlgSelection launchCompletionEvent".split()
    of_options = "next key val".split()
    checks = [
        f"static_assert(offsetof(isthmus::interpose::{ours}, {name}) == offsetof({theirs}, {name}));"
        for ours, theirs, names in (
            ("ConfigHead", "ncclConfig_t", places),
            ("CollConfigHead", "ncclCollConfig_t", of_calls),
            ("ConfigExt", "ncclConfigExt_t", of_options),
        )
        for name in names
    ]
    checks.append("static_assert(sizeof(isthmus::interpose::ConfigExt) == sizeof(ncclConfigExt_t));")
    checks.append("static_assert(+isthmus::interpose::kTimeout == +ncclTimeout);")
    checks.append("static_assert(ncclNumTypes == 12 && ncclNumOps == 5 && NCCL_UNIQUE_ID_BYTES == 128);")
    source = tmp_path / "places.cpp"
    source.write_text('#include <cstddef>\n#include "interpose/abi.hpp"\n#include <nccl.h>\n' + "\n".join(checks))
    errors = compile_only(source, tmp_path, ROOT / "csrc", OURS, defines=("-DNCCL_OS_LINUX",))
    assert not errors, errors


def test_the_table_is_amds(tmp_path: Path) -> None:
    assert len(amds()) > 60
    (tmp_path / "published.inc").write_text(Published([row.name for row in amds()]).header)
    errors = complaints(amds(), '#include "published.inc"', tmp_path)
    assert not errors, errors


def test_another_table_would_be_found(tmp_path: Path) -> None:
    changed = []
    for row in nvidias():
        parameters = row.parameters
        if row.name == "ncclSend":
            parameters = parameters[:-1]
        elif row.name == "ncclCommInitRank":
            parameters = tuple("UniqueId *" if kind == "UniqueId" else kind for kind in parameters)
        elif row.name == "ncclMemAlloc":
            parameters = tuple("int" if kind == "size_t" else kind for kind in parameters)
        changed.append(Row(row.library, row.since, row.twin, row.policy, row.result, row.name, parameters))
    errors = complaints(changed, "#include <nccl.h>", tmp_path)
    for name in ("ncclSend", "ncclCommInitRank", "ncclMemAlloc"):
        assert f"{name} is declared otherwise" in errors
    assert errors.count("is declared otherwise") < 10, errors


# ---- HCCL ----------------------------------------------------------------------------------------------------------------


def published_by_huawei() -> set[str]:
    """What the header declares that PyTorch for Ascend is built with."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (PUBLISHED / "hccl" / "hccl.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"^extern\b[^;{}()]*?\b(Hccl[A-Z]\w*)\s*\(", text, re.MULTILINE))


def huaweis() -> list[Row]:
    return [row for row in HCCL if row.name in published_by_huawei()]


def complaints_of_hccl(rows: list[Row], folder: Path) -> str:
    source = folder / "comparison.cpp"
    source.write_text(comparison(rows, "abi_hccl.hpp", "#include <hccl/hccl.h>", HCCL_SIZES, HCCL_VALUES))
    return compile_only(source, folder, ROOT / "csrc", PUBLISHED, OURS, defines=QUIET)


def test_every_function_of_hccl_that_is_published_is_in_the_table() -> None:
    assert len(published_by_huawei()) > 40
    assert published_by_huawei() == {row.name for row in huaweis()}


def test_the_table_is_huaweis(tmp_path: Path) -> None:
    assert all(row.policy != "jump" for row in huaweis())
    errors = complaints_of_hccl(huaweis(), tmp_path)
    assert not errors, errors


def test_another_table_of_hccl_would_be_found(tmp_path: Path) -> None:
    changed = []
    for row in huaweis():
        parameters = row.parameters
        if row.name == "HcclSend":
            parameters = parameters[:-1]
        elif row.name == "HcclSetConfig":
            parameters = tuple("int32_t" if kind == "Setting" else kind for kind in parameters)
        elif row.name == "HcclAllReduce":
            parameters = tuple("uint32_t" if kind == "uint64_t" else kind for kind in parameters)
        changed.append(replace(row, parameters=parameters))
    errors = complaints_of_hccl(changed, tmp_path)
    for name in ("HcclSend", "HcclSetConfig", "HcclAllReduce"):
        assert f"{name} is declared otherwise" in errors
    assert errors.count("is declared otherwise") < 10, errors
