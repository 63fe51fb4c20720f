"""Messages of more than 4 GiB arrive whole and in their place, without the memory for them.

A buffer is made of segments of 16 MiB, which share one memory but for a few: those with the seams at 2 and at 4 GiB, and the
last one. Those have memory and content of their own. A segment has 251 units of 64 KiB, a prime, so what lies a power of two
away is never the same. A count, length or offset that is cut to 31 or 32 bits on its way shows in one or the other.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import isthmus
from patience import patient

Run = Callable[..., list[Any]]
Bytes = npt.NDArray[np.uint8]

SEGMENT = 251 << 16  # whole pages wherever pages have up to 64 KiB
SEAM_2_GIB, SEAM_4_GIB = (2 << 30) // SEGMENT, (4 << 30) // SEGMENT
LAST = SEAM_4_GIB + 1
COUNT = (LAST + 1) * SEGMENT - 4321  # its last segment lies past 4 GiB, and is not quite full
SECONDS = 120.0  # of work that takes a few; two ranks share a machine with whatever else runs

PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0x0, 0x10, 0x4000


def map_pages(address: int | None, length: int, protection: int, flags: int, fd: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    got = libc.mmap(address, length, protection, flags, fd, 0)
    assert got not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return int(got)


def content(*key: int) -> Bytes:
    """What one memory of a segment holds: other bytes for every key."""
    return np.frombuffer(np.random.default_rng(key).bytes(SEGMENT), np.uint8)


class Wide:
    """Address space for `segments`; those in `own` have a memory each, all others have one together."""

    def __init__(self, segments: int, own: tuple[int, ...]) -> None:
        reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        base = map_pages(None, segments * SEGMENT, PROT_NONE, reserved, -1)
        files = [os.memfd_create("segment") for _ in range(len(own) + 1)]
        for fd in files:
            os.ftruncate(fd, SEGMENT)
        for segment in range(segments):
            fd = files[own.index(segment) + 1 if segment in own else 0]
            place, access = base + segment * SEGMENT, mmap.PROT_READ | mmap.PROT_WRITE
            map_pages(place, SEGMENT, access, mmap.MAP_SHARED | MAP_FIXED, fd)
        for fd in files:
            os.close(fd)
        self.x: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * (segments * SEGMENT)).from_address(base))
        # The common memory is seen through segment 0.
        self.memories = [self.x[at * SEGMENT : (at + 1) * SEGMENT] for at in (0, *own)]

    def fill(self, *contents: Bytes) -> Wide:
        for memory, data in zip(self.memories, contents, strict=True):
            memory[:] = data
        return self

    def check(self, *contents: Bytes) -> None:
        for i, (memory, data) in enumerate(zip(self.memories, contents, strict=True)):
            wrong = np.flatnonzero(memory != data)
            assert not wrong.size, f"memory {i}: {wrong.size} bytes differ, from {wrong[0]} to {wrong[-1]}"


def message() -> Wide:
    """Room for COUNT bytes."""
    return Wide(LAST + 1, (SEAM_2_GIB, SEAM_4_GIB, LAST))


def cut(contents: list[Bytes]) -> list[Bytes]:
    """What must stand in a buffer that was empty: nothing past COUNT was written."""
    last = contents[-1].copy()
    last[COUNT - LAST * SEGMENT :] = 0
    return [*contents[:-1], last]


def broadcast(comm: isthmus.Comm) -> None:
    sent = [content(which) for which in range(4)]
    buffer = message()
    if comm.rank == 1:
        buffer.fill(*sent)
    comm.broadcast(buffer.x[:COUNT], root=1)
    buffer.check(*(sent if comm.rank == 1 else cut(sent)))


def send_and_receive(comm: isthmus.Comm) -> None:
    sent = [content(which) for which in range(4)]
    buffer = message()
    if comm.rank == 0:
        comm.send(buffer.fill(*sent).x[:COUNT], 1, tag=3)
    else:
        assert comm.recv(buffer.x[:COUNT], 0, tag=3) == 0
        buffer.check(*cut(sent))
    comm.barrier()


def all_gather(comm: isthmus.Comm) -> None:
    # Each block ends with the segment that has the seam at 2 GiB, and the second one with that of 4 GiB.
    block = SEAM_2_GIB + 1
    assert 2 * block == SEAM_4_GIB + 1
    common, ends = content(0), [content(1), content(2)]
    mine = Wide(block, (SEAM_2_GIB,)).fill(common, ends[comm.rank])
    everything = Wide(2 * block, (SEAM_2_GIB, SEAM_4_GIB))
    comm.all_gather(mine.x, everything.x)
    everything.check(common, *ends)
    mine.check(common, ends[comm.rank])


def all_reduce(comm: isthmus.Comm) -> None:
    terms = [[content(rank, which) for which in range(4)] for rank in range(2)]
    mine, total = message().fill(*terms[comm.rank]), message()
    comm.all_reduce(mine.x[:COUNT], out=total.x[:COUNT])
    total.check(*cut([a + b for a, b in zip(*terms, strict=True)]))
    mine.check(*terms[comm.rank])


LONG = pytest.mark.everything


@pytest.mark.parametrize(
    ("body", "bridge"),
    [
        (send_and_receive, "tcp"),
        (all_reduce, "tcp"),
        pytest.param(send_and_receive, "shm", marks=LONG),
        pytest.param(all_reduce, "shm", marks=LONG),
        *(pytest.param(body, bridge, marks=LONG) for body in (broadcast, all_gather) for bridge in ("shm", "tcp")),
    ],
)
def test_more_than_4_gib_arrives_whole(processes: Run, body: Callable[[isthmus.Comm], None], bridge: str) -> None:
    assert COUNT > 1 << 32 and LAST * SEGMENT > 1 << 32
    processes(2, body, islands="a:1,b:1", bridge=bridge, env={"ISTHMUS_TIMEOUT": str(patient(SECONDS))}, timeout=2 * SECONDS)
