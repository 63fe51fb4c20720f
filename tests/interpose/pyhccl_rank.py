"""One rank that calls HCCL by pyhccl, as that is in its wheel, on a simulated device.

pyhccl_rank.py RANK RANKS FOLDER, as script_hccl.c: it obeys the same script, by all that pyhccl has of it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import pyhccl

from patience import SOON

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
ROOT_BYTES = pyhccl.HCCL_ROOT_INFO_BYTES
# NCCL's types, in the order of its numbers.
KINDS = [
    pyhccl.HCCL_DATA_TYPE_INT8, pyhccl.HCCL_DATA_TYPE_UINT8, pyhccl.HCCL_DATA_TYPE_INT32, pyhccl.HCCL_DATA_TYPE_UINT32,
    pyhccl.HCCL_DATA_TYPE_INT64, pyhccl.HCCL_DATA_TYPE_UINT64, pyhccl.HCCL_DATA_TYPE_FP16, pyhccl.HCCL_DATA_TYPE_FP32,
    pyhccl.HCCL_DATA_TYPE_FP64, pyhccl.HCCL_DATA_TYPE_BFP16, pyhccl.HCCL_DATA_TYPE_FP8E4M3, pyhccl.HCCL_DATA_TYPE_FP8E5M2,
]  # fmt: skip
OPS = [pyhccl.HCCL_REDUCE_SUM, pyhccl.HCCL_REDUCE_PROD, pyhccl.HCCL_REDUCE_MAX, pyhccl.HCCL_REDUCE_MIN]
TO_DEVICE, FROM_DEVICE, ON_DEVICE = 1, 2, 3

acl = ctypes.CDLL("libascendcl.so")
comms: list[int] = []
now = 0
outputs: list[tuple[int, int, int]] = []  # address, bytes, stream
given, wanted = (FOLDER / f"in.{RANK}").open("rb"), (FOLDER / f"out.{RANK}").open("wb")


def sound(code: int) -> None:
    assert code == 0, code


def told(call: str, code: int) -> None:
    if code != 0:
        print(call, int(code), pyhccl.HcclGetErrorString(code), flush=True)


def on_device(nbytes: int, content: bytes = b"") -> int:
    place = ctypes.c_void_p()
    sound(acl.aclrtMalloc(ctypes.byref(place), ctypes.c_size_t(nbytes + 1), 0))
    host = content.ljust(nbytes + 1, b"\0")
    sound(acl.aclrtMemcpy(place, ctypes.c_size_t(len(host)), host, ctypes.c_size_t(len(host)), TO_DEVICE))
    return place.value or 0


def from_device(place: int, nbytes: int) -> bytes:
    host = ctypes.create_string_buffer(nbytes + 1)
    size = ctypes.c_size_t(nbytes)
    if nbytes:
        sound(acl.aclrtMemcpy(host, size, ctypes.c_void_p(place), size, FROM_DEVICE))
    return host.raw[:nbytes]


def read(nbytes: int) -> int:
    return on_device(nbytes, given.read(nbytes))


def make_stream() -> int:
    s = ctypes.c_void_p()
    sound(acl.aclrtCreateStream(ctypes.byref(s)))
    return s.value or 0


def size_of(kind: int) -> int:
    return pyhccl.data_type_size(KINDS[kind])


def make_id() -> None:
    code, root = pyhccl.HcclGetRootInfo()
    sound(code)
    (FOLDER / "id.part").write_bytes(root.internal)
    (FOLDER / "id.part").rename(FOLDER / "id")


def configuration(name: str) -> pyhccl.HcclCommConfig:
    config = pyhccl.HcclCommConfig()
    pyhccl.HcclCommConfigInit(config)
    config.hcclCommName = name
    return config


def init(named: bool) -> None:
    global now
    name, until = FOLDER / "id", time.monotonic() + SOON
    while not name.exists():
        assert time.monotonic() < until, "no id"
        time.sleep(0.002)
    root = pyhccl.HcclRootInfo()
    root.internal = name.read_bytes()[-ROOT_BYTES:].rjust(ROOT_BYTES, b"\0")
    if named:
        code, comm = pyhccl.HcclCommInitRootInfoConfig(RANKS, root, RANK, configuration("by name"))
    else:
        code, comm = pyhccl.HcclCommInitRootInfo(RANKS, root, RANK)
    told("init", code)
    now = len(comms)
    comms.append(comm)


def part(number: int, members: list[int]) -> None:
    global now
    code, _, comm = pyhccl.HcclCreateSubCommConfig(comms[now], members, number, members.index(RANK), configuration(""))
    told("part", code)
    now = len(comms)
    comms.append(comm)


def ask() -> None:
    device = ctypes.c_int32()
    sound(acl.aclrtGetDevice(ctypes.byref(device)))
    (size_code, size), (rank_code, rank) = pyhccl.HcclGetRankSize(comms[now]), pyhccl.HcclGetRankId(comms[now])
    assert size_code == rank_code == 0 and pyhccl.HcclGetCommAsyncError(comms[now]) == (0, 0)
    print(f"rank {rank} of {size} on {device.value}", flush=True)


def operate(call: str, kind: int, op: int, count: int, root: int, in_place: int, number: int) -> None:
    comm, s, type_ = comms[now], streams[number], KINDS[kind]
    ranks, rank = pyhccl.HcclGetRankSize(comm)[1], pyhccl.HcclGetRankId(comm)[1]
    nbytes = count * size_of(kind)
    wide = nbytes * ranks
    from_bytes = wide if call in ("reduce_scatter", "scatter", "all_to_all") else 0 if call == "recv" else nbytes
    to_bytes = wide if call in ("all_gather", "all_to_all") else 0 if call == "send" else nbytes
    content = given.read(from_bytes)
    if in_place == 2:
        source = target = 0
    elif in_place:
        source = target = on_device(max(from_bytes, to_bytes))
        source += nbytes * rank if call == "all_gather" else 0
        target += nbytes * rank if call == "reduce_scatter" else 0
        size = ctypes.c_size_t(from_bytes)
        sound(acl.aclrtMemcpy(ctypes.c_void_p(source), size, content, size, TO_DEVICE) if from_bytes else 0)
    else:
        source, target = on_device(from_bytes, content), on_device(to_bytes)
    if call in ("broadcast", "bcast") and source != target and nbytes:
        size = ctypes.c_size_t(nbytes)
        sound(acl.aclrtMemcpy(ctypes.c_void_p(target), size, ctypes.c_void_p(source), size, ON_DEVICE))
    reduction = OPS[op] if 0 <= op < len(OPS) else pyhccl.HCCL_REDUCE_RESERVED
    calls: dict[str, Callable[[], int]] = {
        "all_reduce": lambda: pyhccl.HcclAllReduce(source, target, count, type_, reduction, comm, s),
        "reduce": lambda: pyhccl.HcclReduce(source, target, count, type_, reduction, root, comm, s),
        "broadcast": lambda: pyhccl.HcclBroadcast(target, count, type_, root, comm, s),
        "bcast": lambda: pyhccl.HcclBroadcast(target, count, type_, root, comm, s),
        "all_gather": lambda: pyhccl.HcclAllGather(source, target, count, type_, comm, s),
        "reduce_scatter": lambda: pyhccl.HcclReduceScatter(source, target, count, type_, reduction, comm, s),
        "all_to_all": lambda: pyhccl.HcclAlltoAll(source, count, type_, target, count, type_, comm, s),
        "scatter": lambda: pyhccl.HcclScatter(source, target, count, type_, root, comm, s),
        "send": lambda: pyhccl.HcclSend(source, count, type_, root, comm, s),
        "recv": lambda: pyhccl.HcclRecv(target, count, type_, root, comm, s),
    }
    told(call, calls[call]())
    outputs.append((target, to_bytes, s))


def behind_each_other(counts: Sequence[int], gap: int = 0) -> list[int]:
    return [0, *accumulate(count + gap for count in counts[:-1])]


def exchange(kind: int, count: int, number: int, by_matrix: int) -> None:
    matrix = [count + a + 2 * b for a in range(RANKS) for b in range(RANKS)]
    out, got = matrix[RANK * RANKS : (RANK + 1) * RANKS], matrix[RANK::RANKS]
    type_, comm, s = KINDS[kind], comms[now], streams[number]
    source, target = read(sum(out) * size_of(kind)), on_device(sum(got) * size_of(kind))
    if by_matrix:
        code = pyhccl.HcclAlltoAllVC(source, matrix, type_, target, type_, comm, s)
    else:
        places = behind_each_other(out), behind_each_other(got)
        code = pyhccl.HcclAlltoAllV(source, out, places[0], type_, target, got, places[1], type_, comm, s)
    told("exchange", code)
    outputs.append((target, sum(got) * size_of(kind), s))


def unequal(scatters: bool, kind: int, op: int, count: int, number: int) -> None:
    counts = [count + r for r in range(RANKS)]
    places = behind_each_other(counts, 0 if scatters else 1)
    all_bytes = (places[-1] + counts[-1] + (0 if scatters else 1)) * size_of(kind)
    mine = counts[RANK] * size_of(kind)
    type_, comm, s = KINDS[kind], comms[now], streams[number]
    source, target = read(all_bytes if scatters else mine), on_device(mine if scatters else all_bytes)
    if scatters:
        code = pyhccl.HcclReduceScatterV(source, counts, places, target, counts[RANK], type_, OPS[op], comm, s)
    else:
        code = pyhccl.HcclAllGatherV(source, counts[RANK], target, counts, places, type_, comm, s)
    told("scatter_v" if scatters else "gather_v", code)
    outputs.append((target, mine if scatters else all_bytes, s))


def batch(kind: int, count: int, number: int) -> None:
    nbytes = count * size_of(kind)
    target = on_device(nbytes)
    items = []
    for what, place, peer in (
        (pyhccl.HCCL_SEND, read(nbytes), (RANK + 1) % RANKS),
        (pyhccl.HCCL_RECV, target, (RANK - 1) % RANKS),
    ):
        item = pyhccl.HcclSendRecvItem()
        item.sendRecvType, item.buf, item.count, item.dataType, item.remoteRank = what, place, count, KINDS[kind], peer
        items.append(item)
    told("batch", pyhccl.HcclBatchSendRecv(items, comms[now], streams[number]))
    outputs.append((target, nbytes, streams[number]))


def peek() -> None:
    place, nbytes, s = outputs[-1]
    sound(acl.aclrtSynchronizeStream(ctypes.c_void_p(s)))
    print(f"peek: {from_device(place, min(nbytes, 1))[0]}", flush=True)


def wait() -> None:
    for s in streams:
        sound(acl.aclrtSynchronizeStream(ctypes.c_void_p(s)))
    for place, nbytes, _ in outputs:
        wanted.write(from_device(place, nbytes))
    outputs.clear()


def obey(line: str) -> None:
    global now
    call, *words = line.split()
    if call == "name":
        code, name = pyhccl.HcclGetCommName(comms[now])
        sound(code)
        print(f"called {name}", flush=True)
        return
    numbers = [int(word) for word in words]
    others: dict[str, Callable[[], None]] = {
        "id": make_id,
        "init": lambda: init(bool(numbers)),
        "ask": ask,
        "part": lambda: part(numbers[0], numbers[1:]),
        "exchange": lambda: exchange(*numbers),
        "gather_v": lambda: unequal(False, numbers[0], 0, *numbers[1:]),
        "scatter_v": lambda: unequal(True, *numbers),
        "batch": lambda: batch(*numbers),
        "barrier": lambda: told(call, pyhccl.HcclBarrier(comms[now], streams[numbers[0]])),
        "group": lambda: told(call, pyhccl.HcclGroupStart()),
        "end": lambda: told(call, pyhccl.HcclGroupEnd()),
        "peek": peek,
        "wait": wait,
        "finalize": lambda: None,  # HCCL has none
        "destroy": lambda: told(call, pyhccl.HcclCommDestroy(comms[now])),
    }
    if call == "comm":
        now = numbers[0]
    elif call in others:
        others[call]()
    else:
        operate(call, *numbers)


sound(acl.aclInit(None))
sound(acl.aclrtSetDevice(int(os.environ["DEVICE"])))
streams = [make_stream() for _ in range(3)]
for each in (FOLDER / f"script.{RANK}").read_text().splitlines():
    obey(each)
wanted.close()
