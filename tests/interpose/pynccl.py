"""One rank, as Python programs come to the library: opened by name, functions by getattr, all by ctypes.

pynccl.py RANK RANKS FOLDER CASE, on simulated devices. Prints what the case found, as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
AMD = os.environ["VENDOR"] == "rccl"
FLOAT, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """As far as NCCL 2.27 had it."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int), ("max_ctas", ctypes.c_int), ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int), ("traffic_class", ctypes.c_int), ("comm_name", ctypes.c_char_p),
    ]  # fmt: skip


class CollConfig(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("ext", ctypes.c_void_p),
        ("hints", ctypes.c_int * 6), ("force", ctypes.c_int), ("more", ctypes.c_int * 3), ("event", ctypes.c_void_p),
    ]  # fmt: skip


library = ctypes.CDLL("librccl.so.1" if AMD else "libnccl.so.2")
runtime = ctypes.CDLL("libamdhip64.so.6" if AMD else "libcuda.so.1")
library.ncclGetLastError.restype = ctypes.c_char_p


def sound(code: int, what: str) -> None:
    assert code == 0, f"{what} gave {code}: {library.ncclGetLastError(None)}"


def on_device(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    place, nbytes = ctypes.c_void_p(), ctypes.c_size_t(array.nbytes)
    source = ctypes.c_void_p(array.ctypes.data)
    if AMD:
        sound(runtime.hipMalloc(ctypes.byref(place), nbytes), "hipMalloc")
        sound(runtime.hipMemcpy(place, source, nbytes, 1), "hipMemcpy")
    else:
        sound(runtime.cuMemAlloc_v2(ctypes.byref(place), nbytes), "cuMemAlloc")
        sound(runtime.cuMemcpyHtoD_v2(place, source, nbytes), "cuMemcpyHtoD")
    return place


def from_device(place: ctypes.c_void_p, count: int) -> list[float]:
    array = np.zeros(count, np.float32)
    to, nbytes = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    if AMD:
        sound(runtime.hipStreamSynchronize(None), "hipStreamSynchronize")
        sound(runtime.hipMemcpy(to, place, nbytes, 2), "hipMemcpy")
    else:
        sound(runtime.cuStreamSynchronize(None), "cuStreamSynchronize")
        sound(runtime.cuMemcpyDtoH_v2(to, place, nbytes), "cuMemcpyDtoH")
    return [float(x) for x in array]


def work_on_the_device() -> None:
    if AMD:
        sound(runtime.hipInit(0), "hipInit")
        sound(runtime.hipSetDevice(0), "hipSetDevice")
        return
    context = ctypes.c_void_p()
    sound(runtime.cuInit(0), "cuInit")
    sound(runtime.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    sound(runtime.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def unique_ids(count: int) -> ctypes.Array[UniqueId]:
    name, found = FOLDER / "id", (UniqueId * count)()
    if RANK == 0:
        for one in found:
            sound(library.ncclGetUniqueId(ctypes.byref(one)), "ncclGetUniqueId")
        (FOLDER / "part").write_bytes(bytes(found))
        (FOLDER / "part").rename(name)
    until = time.monotonic() + 30
    while not name.exists():
        assert time.monotonic() < until, "no id"
        time.sleep(0.002)
    return (UniqueId * count).from_buffer_copy(name.read_bytes())


def unique_id() -> UniqueId:
    return unique_ids(1)[0]


def init() -> ctypes.c_void_p:
    comm = ctypes.c_void_p()
    sound(library.ncclCommInitRank(ctypes.byref(comm), RANKS, unique_id(), RANK), "ncclCommInitRank")
    return comm


def all_reduce(comm: ctypes.c_void_p) -> list[float]:
    data = on_device(np.full(3, RANK + 1, np.float32))
    sound(library.ncclAllReduce(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None), "ncclAllReduce")
    return from_device(data, 3)


def plain() -> Any:
    comm = init()
    result = all_reduce(comm)
    sound(library.ncclCommDestroy(comm), "ncclCommDestroy")
    return result


def scalable() -> Any:
    """Several ids, and a configuration with a name."""
    comm, one = ctypes.c_void_p(), unique_id()
    ids = (UniqueId * 2)(one, one)
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22703, 1, *[-(2**31)] * 3, None, *[-(2**31)] * 2, b"the name")
    code = library.ncclCommInitRankScalable(ctypes.byref(comm), RANKS, RANK, 2, ids, ctypes.byref(config))
    sound(code, "ncclCommInitRankScalable")
    return all_reduce(comm)


def meetings() -> int:
    """How many threads of this process serve one."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            names.append((task / "comm").read_text().strip())
    return names.count("isthmus-meeting")


def several_ids() -> Any:
    """One each, all of rank 0. No meeting goes on when the communicator is there."""
    ids = unique_ids(5)
    comm, until = ctypes.c_void_p(), time.monotonic() + 10
    while RANK == 0 and meetings() < len(ids) and time.monotonic() < until:
        time.sleep(0.01)
    begun = meetings()
    code = library.ncclCommInitRankScalable(ctypes.byref(comm), RANKS, RANK, len(ids), ids, None)
    sound(code, "ncclCommInitRankScalable")
    result, until = all_reduce(comm), time.monotonic() + 10
    while meetings() and time.monotonic() < until:
        time.sleep(0.01)
    return [begun, meetings(), result]


def with_config() -> Any:
    """The calls of NCCL 2.31 that take a configuration."""
    comm, data, told = init(), on_device(np.full(3, RANK + 1, np.float32)), []
    config = CollConfig(ctypes.sizeof(CollConfig), 0xCAFEBEEF, 23100)
    for force, event in ((0, None), (1, None), (0, 64)):
        config.force, config.event = force, event
        given = ctypes.byref(config)
        code = library.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, given)
        told.append([code, (library.ncclGetLastError(comm) or b"").decode() if code else ""])
    sound(library.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, None), "without")
    return [told, from_device(data, 3)]


def too_long() -> Any:
    """Messages of more bytes than there are numbers for: 2 to the power of 64, 65 and 61."""
    comm = init()
    codes = [library.ncclSend(None, ctypes.c_size_t(1 << bits), 8, 1 - RANK, comm, None) for bits in (61, 62, 58)]
    return codes, all_reduce(comm)


def uneven() -> Any:
    """RCCL's exchange of blocks of different sizes: rank r sends s + 1 elements to rank s."""
    comm = init()
    sizes = ctypes.c_size_t * RANKS
    send_counts, recv_counts = sizes(*[s + 1 for s in range(RANKS)]), sizes(*[RANK + 1] * RANKS)
    send_displs = sizes(*[sum(range(s + 1)) for s in range(RANKS)])
    recv_displs = sizes(*[s * (RANK + 1) for s in range(RANKS)])
    send = on_device(np.concatenate([np.full(s + 1, 10 * RANK + s, np.float32) for s in range(RANKS)]))
    count = RANKS * (RANK + 1)
    recv = on_device(np.zeros(count, np.float32))
    code = library.ncclAlltoAllv(send, send_counts, send_displs, recv, recv_counts, recv_displs, FLOAT, comm, None)
    sound(code, "ncclAlltoAllv")
    return from_device(recv, count)


def all_of_the_process() -> Any:
    comms = (ctypes.c_void_p * 2)()
    sound(library.ncclCommInitAll(comms, 2, None), "ncclCommInitAll")
    count = ctypes.c_int()
    sound(library.ncclCommCount(ctypes.c_void_p(comms[1]), ctypes.byref(count)), "ncclCommCount")
    return count.value


def vendors_own() -> Any:
    """Whatever takes a communicator and is neither routed nor forwarded, with arguments that are no matter."""
    comm, told = init(), {}
    for name in os.environ["NAMES"].split():
        function = getattr(library, name)
        told[name] = [function(*[comm] * 14), (library.ncclGetLastError(comm) or b"").decode()]
    return [told, all_reduce(comm)]


def forked() -> Any:
    """The id is made before a fork, and its meeting is held behind it."""
    found = UniqueId()
    sound(library.ncclGetUniqueId(ctypes.byref(found)), "ncclGetUniqueId")
    child = os.fork()
    if child == 0:
        meeting, got = ctypes.c_void_p(), ctypes.create_string_buffer(8)
        isthmus = ctypes.CDLL(os.environ["LIBISTHMUS"])
        ticket = bytes(found)[56:]
        code = isthmus.isthmus_meeting_join(ticket, 0, 1, ctypes.c_double(10), ctypes.byref(meeting))
        code = code or isthmus.isthmus_meeting_exchange(meeting, b"question", got, ctypes.c_size_t(8))
        os._exit(0 if code == 0 and got.raw == b"question" else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


cases: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (plain, scalable, several_ids, with_config, too_long, uneven, all_of_the_process, vendors_own, forked)
}
work_on_the_device()
print(json.dumps(cases[sys.argv[4]]()))
