"""A program for HCCL whose ranks are threads: `client_refused_hccl.py RANKS NAME:PLACE...`.

It marks its root info as another vendor's, so that HCCL can make nothing of it and Isthmus carries the communicator. On that
each rank adds up; rank 0 then calls the named functions with the communicator in that place among their arguments. Prints
the sums and the codes.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading

FLOAT, SUM = 4, 0
ROOT_BYTES, MAKER = 4108, 4108 - 80 + 7
COUNT = 100

hccl, acl = ctypes.CDLL("libhccl.so"), ctypes.CDLL("libascendcl.so")
ranks, named = int(sys.argv[1]), [word.split(":") for word in sys.argv[2:]]
sums: list[list[float]] = [[] for _ in range(ranks)]
codes: dict[str, int] = {}


def good(code: int) -> None:
    assert code == 0, code


def work(rank: int) -> None:
    comm, stream, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    values = (ctypes.c_float * COUNT)(*(float(i + rank) for i in range(COUNT)))
    bytes_ = ctypes.c_size_t(ctypes.sizeof(values))
    good(acl.aclrtSetDevice(rank))
    good(acl.aclrtCreateStream(ctypes.byref(stream)))
    good(acl.aclrtMalloc(ctypes.byref(device), bytes_, 0))
    good(hccl.HcclCommInitRootInfo(ranks, root, rank, ctypes.byref(comm)))
    name = ctypes.create_string_buffer(128)
    good(hccl.HcclGetCommName(comm, name))
    assert name.value.startswith(b"interposed-"), name.value
    for turn in range(2):
        good(acl.aclrtMemcpy(device, bytes_, values, bytes_, 1))
        good(hccl.HcclAllReduce(device, device, ctypes.c_uint64(COUNT), FLOAT, SUM, comm, stream))
        good(acl.aclrtSynchronizeStream(stream))
        if rank == 0 and turn == 0:
            for function, place in named:
                before = [ctypes.c_void_p(0)] * int(place)
                codes[function] = getattr(hccl, function)(*before, comm, *[ctypes.c_void_p(0)] * 8)
    got = (ctypes.c_float * COUNT)()
    good(acl.aclrtMemcpy(got, bytes_, device, bytes_, 2))
    sums[rank] = list(got)
    good(hccl.HcclCommDestroy(comm))


good(acl.aclInit(None))
good(acl.aclrtSetDevice(0))
root = ctypes.create_string_buffer(ROOT_BYTES)
good(hccl.HcclGetRootInfo(root))
assert root[MAKER] == b"h"
root[MAKER] = b"n"
threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([sums, codes]))
