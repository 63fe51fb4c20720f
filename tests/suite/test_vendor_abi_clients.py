"""What the interposer's C clients are compiled with is what the vendors publish: the compiler compares them.

The clients of tests/interpose have declarations of their own, as programs have the vendors', and say some of the vendors'
numbers themselves. As in test_vendor_abi.py, nothing of this is run. The clients' come first and in a namespace, where
they declare other functions than the vendors' of the same names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from test_vendor_abi import HEADERS, OURS, ROOT, compile_only, headers  # noqa: F401
from test_vendor_abi_amd import Published, numbers
from test_vendor_abi_ascend import PUBLISHED, QUIET

CLIENTS = ROOT / "tests" / "interpose"
FUNCTION = re.compile(r"^(?:const )?\w+ \*?((?:nccl|Hccl|acl|hip|cu)\w+)\([^;{}]*\);", re.MULTILINE)
# The headers have C's conversions in the bodies of their functions.
C = ("-fpermissive", "-w")


@dataclass(frozen=True)
class Said:
    """A number that a client says: the place, which has it as its group, and the vendor's names of it, or the numbers."""

    place: str
    theirs: str


@dataclass(frozen=True)
class Client:
    file: str
    vendor: str  # nvidia, amd, ascend
    macro: str = ""  # with which it is compiled
    least: int = 1  # how many functions it has at least
    needs: tuple[str, ...] = ()  # headers before it
    structs: tuple[str, ...] = ()  # that are taken from it, where it is no header
    sizes: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str, str], ...] = ()  # the struct, the vendor's, and "ours=theirs" of each
    said: tuple[Said, ...] = field(default=())

    def text(self, folder: Path) -> str:
        return (folder / self.file).read_text()

    def part(self, folder: Path) -> str:
        """What there is of the file with its macro; comments are no part of it."""
        text = re.sub(r"/\*.*?\*/", "", self.text(folder), flags=re.DOTALL)
        parts = re.split(r"^#(?:if defined\((\w+)\)|elif defined\((\w+)\)|(else)|(endif)).*\n", text, flags=re.MULTILINE)
        if self.file != DEVICE:
            return text
        kept = parts[0]
        for one, other, otherwise, _, body in zip(*(parts[i::5] for i in range(1, 6)), strict=True):
            kept += body if (one or other or otherwise) == (self.macro or "else") else ""
        return kept

    def functions(self, folder: Path) -> list[str]:
        return FUNCTION.findall(self.part(folder))


NCCL_SIZES = (("unique_id", "ncclUniqueId"),)
NCCL_HEAD = "size=size magic=magic version=version blocking=blocking"
DEVICE = "device_like.h"
CLIENTS_OF = {
    "nccl": Client("nccl_like.h", "nvidia", least=25, sizes=NCCL_SIZES),
    "rccl": Client("nccl_like.h", "amd", least=25, sizes=NCCL_SIZES),
    "newer nccl": Client("nccl_newer_like.h", "nvidia", least=8, needs=("nccl_like.h",)),
    "newer rccl": Client("nccl_newer_like.h", "amd", least=8, needs=("nccl_like.h",)),
    "nccl alone": Client("nccl_alone_like.h", "nvidia", least=1, needs=("nccl_like.h",)),
    "rccl alone": Client("rccl_alone_like.h", "amd", least=1, needs=("nccl_like.h",)),
    "hccl": Client(
        "hccl_like.h",
        "ascend",
        least=35,
        sizes=(
            ("root_info", "HcclRootInfo"),
            ("comm_handle", "HcclComm"),
            ("message", "HcclSendRecvItem"),
            ("setting", "HcclConfigValue"),
        ),
        fields=(
            ("message", "HcclSendRecvItem", "what=sendRecvType buffer=buf count=count type=dataType peer=remoteRank"),
            ("setting", "HcclConfigValue", "value=value"),
        ),
    ),
    "nccl's configuration": Client(
        "script.c",
        "nvidia",
        least=0,
        structs=("config",),
        fields=(("config", "ncclConfig_t", NCCL_HEAD),),
        said=(Said(r"struct config config = \{[^,]*, (\w+),", "NCCL_API_MAGIC"),),
    ),
    "rccl's configuration": Client(
        "script.c", "amd", least=0, structs=("config",), fields=(("config", "ncclConfig_v22800", NCCL_HEAD),)
    ),
    "hccl's configuration": Client(
        "script_hccl.c",
        "ascend",
        least=0,
        structs=("hccl_config",),
        fields=(
            (
                "hccl_config",
                "HcclCommConfig",
                "size=reserved buffer_megabytes=hcclBufferSize deterministic=hcclDeterministic name=hcclCommName",
            ),
        ),
        said=(
            Said(r"struct hccl_config config = \{[^,]*, (\w+),", "HCCL_COMM_CONFIG_MAGIC_WORD"),
            Said(
                r"int types\[\] = \{([^}]*)\}",
                " ".join(
                    f"HCCL_DATA_TYPE_{name}"
                    for name in "INT8 UINT8 INT32 UINT32 INT64 UINT64 FP16 FP32 FP64 BFP16 FP8E4M3 FP8E5M2".split()
                    + "INT16 UINT16 HIF8 FP8E8M0".split()
                ),
            ),
        ),
    ),
    "cuda": Client(
        DEVICE,
        "nvidia",
        least=15,
        said=(
            Said(r"cuStreamCreate\(&s, (\w+)\)", "CU_STREAM_NON_BLOCKING"),
            Said(r"cuMemHostRegister_v2\(p, bytes, (\w+)\)", "CU_MEMHOSTREGISTER_DEVICEMAP"),
            Said(r"cuStreamWaitValue64_v2\(s, there, 1, (\w+)\)", "CU_STREAM_WAIT_VALUE_GEQ"),
            Said(r"cuStreamBeginCapture_v2\(s, (\w+)\)", "CU_STREAM_CAPTURE_MODE_RELAXED"),
        ),
    ),
    "hip": Client(
        DEVICE,
        "amd",
        "AMD",
        least=13,
        said=(
            Said(r"void copy_in\(.*hipMemcpy\(.*, (\w+)\)\)", "hipMemcpyHostToDevice"),
            Said(r"void copy_out\(.*hipMemcpy\(.*, (\w+)\)\)", "hipMemcpyDeviceToHost"),
            Said(r"void copy_later\(.*hipMemcpyAsync\(.*, (\w+), s\)\)", "hipMemcpyHostToDevice"),
            Said(r"void copy_there\(.*hipMemcpyAsync\(.*, (\w+), s\)\)", "hipMemcpyDeviceToDevice"),
            Said(r"hipHostRegister\(p, bytes, (\w+)\)", "hipHostRegisterMapped"),
            Said(r"hipExtMallocWithFlags\(&word, 8, (\w+)\)", "hipMallocSignalMemory"),
            Said(r"hipStreamWaitValue64\(s, \(void \*\)word, 1, (\w+),", "hipStreamWaitValueGte"),
            Said(r"hipStreamBeginCapture\(s, (\w+)\)", "hipStreamCaptureModeRelaxed"),
        ),
    ),
    "acl": Client(
        DEVICE,
        "ascend",
        "ASCEND",
        least=11,
        said=(
            Said(r"aclrtMalloc\(&p, bytes, (\w+)\)", "ACL_MEM_MALLOC_HUGE_FIRST"),
            Said(r"void copy_in\(.*aclrtMemcpy\(.*, (\w+)\)\)", "ACL_MEMCPY_HOST_TO_DEVICE"),
            Said(r"void copy_out\(.*aclrtMemcpy\(.*, (\w+)\)\)", "ACL_MEMCPY_DEVICE_TO_HOST"),
            Said(r"void copy_later\([^}]*aclrtMemcpyAsync\(.*, (\w+), s\)\)", "ACL_MEMCPY_HOST_TO_DEVICE"),
            Said(r"void copy_there\(.*aclrtMemcpyAsync\(.*, (\w+), s\)\)", "ACL_MEMCPY_DEVICE_TO_DEVICE"),
            Said(r"aclrtHostRegisterV2\(p, bytes, (\w+)\)", "ACL_HOST_REG_PINNED"),
            Said(r"aclmdlRICaptureBegin\(s, (\w+)\)", "ACL_MODEL_RI_CAPTURE_MODE_RELAXED"),
        ),
    ),
}


def amds_number(name: str) -> int:
    enums, others = numbers()
    return next((values[name] for values in enums.values() if name in values), others.get(name, -1))


def theirs(client: Client, names: list[str], folder: Path) -> str:
    if client.vendor == "nvidia":
        return "#include <cuda.h>\n#include <nccl.h>\n"
    if client.vendor == "ascend":
        return "#include <acl/acl.h>\n#include <hccl/hccl.h>\n"
    (folder / "published.inc").write_text(Published(names).header)
    return '#include "published.inc"\n'


def complaints(client: Client, folder: Path, clients: Path = CLIENTS) -> str:
    names = client.functions(clients) if not client.structs else []
    assert len(names) >= client.least, names
    if client.structs:
        found = [re.search(rf"^struct {name} \{{.*?^\}};", client.text(clients), re.M | re.S) for name in client.structs]
        assert all(found), client.structs
        ours = "\n".join(one[0] for one in found if one)
    else:
        files = [CLIENTS / need for need in client.needs] + [clients / client.file]
        ours = "\n".join(f'#include "{file}"' for file in files)
    checks = [
        f'static_assert(vendor::same_shape<decltype(&like::{name}), decltype(&::{name})>(), "{name} is declared otherwise");'
        for name in names
    ]
    for mine, its in client.sizes:
        checks.append(f'static_assert(sizeof(like::{mine}) == sizeof({its}), "{mine} is of another size");')
    for mine, its, pairs in client.fields:
        for pair in pairs.split():
            a, b = pair.split("=")
            checks.append(f'static_assert(offsetof(like::{mine}, {a}) == offsetof({its}, {b}), "{a} is elsewhere");')
            if b != "reserved":  # several of ours
                checks.append(f'static_assert(sizeof(like::{mine}::{a}) == sizeof({its}::{b}), "{a} is of another size");')
    for said in client.said:
        places = re.findall(said.place, client.part(clients))
        assert places, f"{said.place} is nowhere in {client.file}"
        for place in places:
            values, vendors = place.split(","), said.theirs.split()
            assert len(values) == len(vendors), place
            for value, name in zip(values, vendors, strict=True):
                number = str(amds_number(name)) if client.vendor == "amd" else name
                checks.append(
                    f"static_assert(static_cast<long long>({value.strip()}) == static_cast<long long>({number}),"
                    f' "{name} is another number");'
                )
    text = "\n".join(
        [
            "#include <cstddef>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>",
            f"namespace like {{\n{ours}\n}}",
            theirs(client, names, folder),
            '#include "same_shape.hpp"',
            *checks,
        ]
    )
    source = folder / "clients.cpp"
    source.write_text(text + "\n")
    places = [PUBLISHED] if client.vendor == "ascend" else []
    macro = (f"-D{client.macro}",) if client.macro else ()
    return compile_only(source, folder, *places, OURS, defines=("-DNCCL_OS_LINUX", *QUIET, *C, *macro))


@pytest.mark.parametrize("which", CLIENTS_OF)
def test_the_clients_declarations_are_the_vendors(which: str, tmp_path: Path) -> None:
    errors = complaints(CLIENTS_OF[which], tmp_path)
    assert not errors, errors


def test_the_clients_declare_nothing_but_in_their_headers() -> None:
    """Where it is compared."""
    declared = {file.name: FUNCTION.findall(file.read_text()) for file in sorted(CLIENTS.glob("*.c"))}
    assert len(declared) > 10 and not any(declared.values()), declared
    assert all(
        len(FUNCTION.findall(header.read_text())) > 0
        for header in CLIENTS.glob("*_like.h")
        if "per_thread" not in header.name
    )


WRONG = {
    "nccl": [
        ("bytes[128]", "bytes[64]", "unique_id is of another size"),
        ("int ranks, unique_id id, int rank);", "int ranks, unique_id *id, int rank);", "ncclCommInitRank is declared"),
        ("*from, size_t count, int type, int peer", "*from, int count, int type, int peer", "ncclSend is declared"),
        ("ncclGroupEnd(void)", "ncclGroupEnd(int flags)", "ncclGroupEnd is declared"),
    ],
    "rccl": [
        ("int color, int key,", "int color, size_t key,", "ncclCommSplit is declared"),
        ("void *scalar, int type, int residence,", "void *scalar, int type,", "ncclRedOpCreatePreMulSum is declared"),
    ],
    "newer nccl": [
        ("int ranks, int rank, int count, unique_id *ids,", "int ranks, int rank, unique_id *ids,", "Scalable is declared"),
        (
            "comm_handle comm, int *excluded, int count,",
            "comm_handle comm, int *excluded, size_t count,",
            "Shrink is declared",
        ),
    ],
    "newer rccl": [("size_t bytes, void **handle", "int bytes, void **handle", "ncclCommRegister is declared")],
    "nccl alone": [("int flags", "long flags", "ncclCommSuspend is declared")],
    "rccl alone": [("const size_t *places, void *to", "const int *places, void *to", "ncclAlltoAllv is declared")],
    "hccl": [
        ("internal[4108]", "internal[4096]", "root_info is of another size"),
        ("  uint64_t count;\n  int type;\n", "  int type;\n  uint64_t count;\n", "count is elsewhere"),
        ("HcclSetConfig(int which, setting to)", "HcclSetConfig(int which, int32_t to)", "HcclSetConfig is declared"),
        ("HcclBarrier(comm_handle comm, void *stream)", "HcclBarrier(comm_handle comm)", "HcclBarrier is declared"),
    ],
    "nccl's configuration": [
        ("unsigned magic, version;", "unsigned version, magic;", "magic is elsewhere"),
        ("0xcafebeef", "0xcafebeee", "NCCL_API_MAGIC is another number"),
    ],
    "rccl's configuration": [("int blocking, unused;", "int unused, blocking;", "blocking is elsewhere")],
    "hccl's configuration": [
        ("char name[128];", "char name[64];", "name is of another size"),
        ("0xf0f0f0f0", "0xf0f0f0f1", "HCCL_COMM_CONFIG_MAGIC_WORD is another number"),
        ("{0, 7, 2, 9,", "{0, 7, 9, 2,", "HCCL_DATA_TYPE_INT32 is another number"),
    ],
    "cuda": [
        ("cuMemAlloc_v2(uint64_t *p,", "cuMemAlloc_v2(void **p,", "cuMemAlloc_v2 is declared"),
        ("cuStreamBeginCapture_v2(s, 2)", "cuStreamBeginCapture_v2(s, 1)", "CU_STREAM_CAPTURE_MODE_RELAXED is"),
    ],
    "hip": [
        ("int hipMemcpy(void *to, const void *from, size_t bytes,", "int hipMemcpy(void *to, size_t bytes,", "hipMemcpy is"),
        ("hipHostRegister(p, bytes, 2)", "hipHostRegister(p, bytes, 4)", "hipHostRegisterMapped is another number"),
    ],
    "acl": [
        (
            "aclrtHostRegisterV2(void *p, uint64_t bytes,",
            "aclrtHostRegisterV2(void *p, int bytes,",
            "RegisterV2 is declared",
        ),
        ("0x10000000", "0x20000000", "ACL_HOST_REG_PINNED is another number"),
    ],
}


@pytest.mark.parametrize("which", CLIENTS_OF)
def test_other_declarations_would_be_found(which: str, tmp_path: Path) -> None:
    client = CLIENTS_OF[which]
    text = client.text(CLIENTS)
    for right, wrong, _ in WRONG[which]:
        assert right in text, f"{right} is no longer in {client.file}: choose another line for this test"
        text = text.replace(right, wrong)
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / client.file).write_text(text)
    errors = complaints(client, tmp_path, changed)
    missed = [complaint for _, _, complaint in WRONG[which] if complaint not in errors]
    assert not missed, errors
    assert errors.count("static assertion failed") < 12, errors
