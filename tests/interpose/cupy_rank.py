"""One rank that calls NCCL by CuPy's own class for its communicators, as that is in CuPy's wheel, on a simulated device.

cupy_rank.py RANK RANKS FOLDER CASE, as pynccl.py.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from patience import SOON

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
COUNT = 1000

cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
for code in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
):
    assert code == 0

from cupy_backends.cuda.libs import nccl  # noqa: E402

from every_type import all_are_done, every_type  # noqa: E402


def on_device(array: np.ndarray[Any, Any]) -> int:
    place = ctypes.c_void_p()
    assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(array.nbytes)) == 0 and place.value
    assert cuda.cuMemcpyHtoD_v2(place, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)) == 0
    assert cuda.cuStreamSynchronize(None) == 0  # the driver comes back before the device has it
    return place.value


def from_device(place: int, count: int) -> np.ndarray[Any, Any]:
    array = np.zeros(count, np.float32)
    assert cuda.cuStreamSynchronize(None) == 0
    copied = cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(place), ctypes.c_size_t(array.nbytes))
    assert copied == 0
    return array


def unique_id() -> bytes:
    name = FOLDER / "id"
    if RANK == 0:
        (FOLDER / "part").write_bytes(nccl.get_unique_id())
        (FOLDER / "part").rename(name)
    until = time.monotonic() + SOON
    while not name.exists():
        assert time.monotonic() < until, "no id"
        time.sleep(0.002)
    return name.read_bytes()


def plain() -> Any:
    comm = nccl.NcclCommunicator(RANKS, unique_id(), RANK)
    data = on_device(np.full(3, RANK + 1, np.float32))
    comm.allReduce(data, data, 3, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
    result = [float(x) for x in from_device(data, 3)]
    comm.destroy()
    return result


def every_method() -> Any:
    """All operations that the class has, and its questions. What each rank has is told by its number."""
    comm = nccl.NcclCommunicator(RANKS, unique_id(), RANK)
    own = np.arange(COUNT, dtype=np.float32) + RANK
    everybody = np.stack([np.arange(COUNT, dtype=np.float32) + r for r in range(RANKS)])
    a, b, many = on_device(own), on_device(np.zeros(COUNT, np.float32)), on_device(np.zeros(RANKS * COUNT, np.float32))
    whole, kind = on_device(np.tile(own, RANKS)), nccl.NCCL_FLOAT32
    found: dict[str, Any] = {"asked": [comm.size(), comm.rank_id(), comm.device_id(), comm.check_async_error()]}
    comm.allReduce(a, b, COUNT, kind, nccl.NCCL_MAX, 0)
    found["allReduce"] = bool((from_device(b, COUNT) == everybody.max(axis=0)).all())
    comm.reduce(a, b, COUNT, kind, nccl.NCCL_SUM, RANKS - 1, 0)
    found["reduce"] = RANK != RANKS - 1 or bool((from_device(b, COUNT) == everybody.sum(axis=0)).all())
    comm.broadcast(a, b, COUNT, kind, 1, 0)
    found["broadcast"] = bool((from_device(b, COUNT) == everybody[1]).all())
    comm.allGather(a, many, COUNT, kind, 0)
    found["allGather"] = bool((from_device(many, RANKS * COUNT).reshape(RANKS, COUNT) == everybody).all())
    comm.reduceScatter(whole, b, COUNT, kind, nccl.NCCL_SUM, 0)
    found["reduceScatter"] = bool((from_device(b, COUNT) == everybody.sum(axis=0)).all())
    nccl.groupStart()
    comm.send(a, COUNT, kind, (RANK + 1) % RANKS, 0)
    comm.recv(b, COUNT, kind, (RANK - 1) % RANKS, 0)
    nccl.groupEnd()
    found["send and recv"] = bool((from_device(b, COUNT) == everybody[(RANK - 1) % RANKS]).all())
    comm.bcast(b, COUNT, kind, 0, 0)
    nccl_error = ""
    try:
        comm.broadcast(a, b, COUNT, kind, RANKS, 0)
    except nccl.NcclError as error:
        nccl_error = str(error)
    found["a root that is none"] = nccl_error.split(":")[0]
    comm.destroy()
    return found


def fetched(place: int, nbytes: int) -> bytes:
    got = np.zeros(nbytes, np.uint8)
    assert cuda.cuStreamSynchronize(None) == 0
    assert cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(got.ctypes.data), ctypes.c_void_p(place), ctypes.c_size_t(nbytes)) == 0
    return got.tobytes()


def types() -> Any:
    """On a communicator, and on a part of it that has all its ranks in the opposite order."""
    comm = nccl.NcclCommunicator(RANKS, unique_id(), RANK)
    found = [comm.size(), comm.rank_id(), comm.device_id(), comm.check_async_error()]
    group = nccl.groupStart, nccl.groupEnd
    wrong = every_type(comm, group, RANK, RANKS, on_device, fetched)
    part = comm.commSplit(0, -RANK)
    found += [part.size(), part.rank_id()]
    wrong += every_type(part, group, RANKS - 1 - RANK, RANKS, on_device, fetched)
    part.destroy()
    all_are_done(FOLDER, RANK, RANKS)
    comm.abort()
    return found, wrong


print(json.dumps({"plain": plain, "every_method": every_method, "types": types}[sys.argv[4]]()))
