"""A script for torchrun that knows nothing of Isthmus: ranks meet by PyTorch, and sum by their devices' vendors' library.

The library is called by ctypes, since PyTorch's own call of it needs a build for the device.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
import torch.distributed as dist

from on_device import AMD, fetched, on_device, work_on_the_device

COUNT, FLOAT, SUM = 50_000, 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert rank == int(os.environ["RANK"])
    work_on_the_device()
    library = ctypes.CDLL("librccl.so.1" if AMD else "libnccl.so.2")
    library.ncclGetLastError.restype = ctypes.c_char_p

    def sound(code: int) -> None:
        assert code == 0, library.ncclGetLastError(None)

    unique_id, comm = UniqueId(), ctypes.c_void_p()
    if rank == 0:
        sound(library.ncclGetUniqueId(ctypes.byref(unique_id)))
    handed = [bytes(unique_id)]
    dist.broadcast_object_list(handed)
    unique_id = UniqueId.from_buffer_copy(handed[0])
    sound(library.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id, rank))
    place = on_device(np.arange(COUNT, dtype=np.float32) % 1000 + rank)
    sound(library.ncclAllReduce(place, place, ctypes.c_size_t(COUNT), FLOAT, SUM, comm, None))
    got = np.frombuffer(fetched(place.value, 4 * COUNT), np.float32)
    assert (got == np.arange(COUNT) % 1000 * ranks + sum(range(ranks))).all()
    sound(library.ncclCommDestroy(comm))
    dist.destroy_process_group()
    # One write: the ranks of a node share its output, and print() without a buffer writes the end of a line by itself.
    os.write(1, f"rank {rank} of {ranks}: right\n".encode())


main()
