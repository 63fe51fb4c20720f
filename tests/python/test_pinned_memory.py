"""Pinned memory of the host in calls of a rank with a device: who touches it, and what orders it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from patience import SOON
from test_islands import contribution, expected
from test_staging import everything, same

PAGE = mmap.PAGESIZE
COPY = {"cuda": "cuMemcpyAsync", "hip": "hipMemcpyAsync"}


class Pinned:
    """An array in memory of the host that device 0 reaches, by a mapping of the device's own (OWN_MAPPING)."""

    def __init__(self, host: np.ndarray[Any, Any], pinned: int | None = None) -> None:
        """`pinned`: of so many bytes, and what follows is plain."""
        self.nbytes = -(-max(host.nbytes, 1) // PAGE) * PAGE
        self.memory = mmap.mmap(-1, self.nbytes)
        self.x = np.frombuffer(self.memory, host.dtype, host.size).reshape(host.shape)
        self.x[...] = host
        self.address = self.x.ctypes.data
        vendor().register(self.address, self.nbytes if pinned is None else pinned)

    def __del__(self) -> None:
        vendor().unregister(self.address)

    def allow(self, access: bool) -> None:
        """Whether a processor may touch it: else the process ends."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE if access else 0
        c = ctypes.CDLL(None, use_errno=True)
        assert c.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes), protection) == 0


# Every rank's two buffers are used: where one is the device's, the device works on both, whoever serves the rank.
BOTH_USED = {"all_reduce", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all"}


class Placed:
    """A communicator whose calls get their first array in one kind of memory, and their second in another."""

    def __init__(self, comm: isthmus.Comm, places: tuple[str, str], guarded: Callable[[str], bool]) -> None:
        self.comm, self.places, self.guarded = comm, places, guarded

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.comm, name)
        if not callable(method) or name in ("explain", "topology", "split", "send", "recv", "barrier"):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            values = [*arguments, *options.values()]
            hosts = [a for i, a in enumerate(values) if isinstance(a, np.ndarray) and not any(a is b for b in values[:i])]
            # Of one array it is the first kind, whichever it is: what comes out of all others is in the second.
            images = [self.image(host, self.places[min(i, 1)]) for i, host in enumerate(hosts)]

            def there(value: Any) -> Any:
                for host, image in zip(hosts, images, strict=True):
                    if value is host:
                        return image.x if isinstance(image, Pinned) else image
                return value

            pinned = [image for image in images if isinstance(image, Pinned)]
            mixed = len(images) == 2 and set(self.places) == {"pinned", "device"} and name in BOTH_USED
            guarded = mixed or self.guarded(name)
            for image in pinned if guarded else ():
                image.allow(False)
            try:
                result = method(*map(there, arguments), **{key: there(value) for key, value in options.items()})
            finally:
                for image in pinned if guarded else ():
                    image.allow(True)
            for host, image in zip(hosts, images, strict=True):
                out = image.x if isinstance(image, Pinned) else image
                host[...] = image.get() if isinstance(image, DeviceArray) else out
                if result is out:
                    result = host
            return result

        return call

    @staticmethod
    def image(host: np.ndarray[Any, Any], place: str) -> Any:
        return {"pinned": Pinned, "device": DeviceArray.of, "plain": np.copy}[place](host)


def copies() -> int:
    """How many copies this process has given to the device's streams."""
    engine = ctypes.CDLL("librehearsal.so")
    engine.rehearsal_calls.restype = ctypes.c_ulong
    return int(engine.rehearsal_calls(COPY[vendor_name()].encode()))


def vendor_name() -> str:
    return {"nccl": "cuda", "rccl": "hip"}[vendor().family]


def with_counts(where: Any, count: int) -> None:
    """The collectives with counts that `everything` lacks, some in place, with blocks that do not follow each other."""
    n, me = where.size, where.rank
    counts = [count + 3 * r for r in range(n)]
    displs = [r * (count + 3 * n + 5) for r in range(n)]
    blocks = [contribution(r, counts[r], "int32") for r in range(n)]
    spread = np.full(displs[-1] + counts[-1] + 9, -5, np.int32)
    for r in range(n):
        spread[displs[r] : displs[r] + counts[r]] = blocks[r]
    out = np.full_like(spread, -5)
    same(where.all_gather_v(blocks[me], counts, out, displs=displs), spread, "all_gather_v")
    out = np.full_like(spread, -5)
    where.gather_v(blocks[me], counts, 0, out if me == 0 else None, displs=displs)
    if me == 0:
        same(out, spread, "gather_v")
    out = np.zeros(counts[me], np.int32)
    same(where.scatter_v(spread if me == n - 1 else None, counts, n - 1, out, displs=displs), blocks[me], "scatter_v")
    same(where.reduce_scatter_v(spread, counts, "sum", np.zeros(counts[me], np.int32), displs=displs), n * blocks[me], "v")
    x = contribution(me, count, "int32")
    same(where.all_reduce(x, "sum", x), expected(n, count, "int32", "sum"), "all_reduce in place")
    x = contribution(0, count, "int32") if me == 0 else np.zeros(count, np.int32)
    same(where.broadcast(x, 0), contribution(0, count, "int32"), "broadcast in place")
    wide = np.concatenate([contribution(me + r, count, "int32") for r in range(n)]).reshape(n, count)
    same(where.all_to_all(wide, wide), np.stack([contribution(me + r, count, "int32") for r in range(n)]), "in place")


BOTH = ("pinned", "pinned")
SERVED = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"}  # by the library, also between islands


@pytest.mark.parametrize(
    ("fleet", "switches"),
    [
        ("nvidia:2", {}),
        ("nvidia:3", {"SAME_ADDRESS": "1"}),
        ("amd:2", {"QUEUES": "1"}),
        ("nvidia:2", {"CUDA_NO_STREAM_VALUES": "1"}),
        ("nvidia:2,amd:2", {}),
        ("amd:2,cpu:1", {"SAME_ADDRESS": "1"}),
        ("nvidia:1,amd:1", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("places", [BOTH, ("pinned", "device"), ("device", "pinned")], ids="-".join)
def test_no_processor_touches_pinned_memory_that_a_device_works_on(
    fleet: str, switches: dict[str, str], places: tuple[str, str]
) -> None:
    """Of a library's island, and where the other buffer is memory of the device."""

    def body(comm: isthmus.Comm) -> None:
        alone = len(comm.topology()["islands"]) == 1
        where: Any = comm
        if not on_host():
            where = Placed(comm, places, lambda name: alone or (comm.size > 2 and name in SERVED))
        for count in (1000, 400_000):
            everything(where, count)
            with_counts(where, count)

    run_fleet(fleet, body, switches={"OWN_MAPPING": "1", **switches}, timeout=300)


@pytest.mark.parametrize("fleet", ["nvidia:3", "amd:2,nvidia:2", "nvidia:1,amd:1,cpu:1"])
def test_each_rank_has_its_buffers_where_it_likes(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> None:
        mixed = [("pinned", "device"), ("device", "pinned"), ("plain", "pinned")]
        kinds = [BOTH, ("device", "device"), ("plain", "plain"), *mixed]
        for turn in range(len(kinds)):
            places = kinds[(comm.rank + turn) % len(kinds)]
            where: Any = comm if on_host() else Placed(comm, places, lambda name: False)
            everything(where, 90_000)
            with_counts(where, 90_000)

    run_fleet(fleet, body, switches={"OWN_MAPPING": "1"}, timeout=300)


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_the_library_of_the_only_island_is_given_pinned_memory_where_it_lies(fleet: str) -> None:
    """Nothing is copied."""

    def body(comm: isthmus.Comm) -> int:
        x, y, all_of = (Pinned(np.full(n, comm.rank + 1, np.int32)) for n in (5000, 5000, 10_000))
        before = copies()
        comm.all_reduce(x.x, "sum", y.x)
        comm.all_reduce(x.x, "max", x.x)
        comm.broadcast(y.x, 1)
        comm.all_gather(x.x, all_of.x)
        comm.reduce_scatter(all_of.x.reshape(2, -1), "sum", y.x)
        assert (all_of.x == 2).all()
        assert (y.x == 4).all()
        return copies() - before

    assert run_fleet(fleet, body, switches={"OWN_MAPPING": "1"}) == [0, 0]


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2", "nvidia:2,amd:2", "amd:2,cpu:1"])
def test_a_call_with_pinned_memory_and_a_stream_does_not_wait_where_a_library_serves(fleet: str) -> None:
    """The stream has yet to fill what is reduced, and reads the sum behind the call."""

    def body(comm: isthmus.Comm) -> tuple[bool, bool]:
        n, mine = 200_000, comm.rank + 1.0
        total = comm.size * (comm.size + 1) / 2
        if on_host():
            x = np.full(n, mine, np.float32)
            comm.all_reduce(np.zeros_like(x))
            comm.all_reduce(x, "sum", x)
            comm.barrier()
            return True, bool((x == total).all())
        there = vendor()
        stream = there.stream()
        x, filled, read = Pinned(np.zeros(n, np.float32)), *(DeviceArray.of(np.full(n, v, np.float32)) for v in (mine, 0.0))
        comm.all_reduce(x.x, "sum", x.x)  # the first call of a library, and of a size, may wait for the device
        go_on = there.hold(stream)
        there.copy_out(x.address, filled.address, filled.nbytes, stream)
        works: list[isthmus.Work] = []

        def call() -> None:
            there.here()
            works.append(comm.all_reduce(x.x, "sum", x.x, stream=stream, async_op=True))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(SOON)
        returned = not thread.is_alive() and not works[0].done
        go_on()
        thread.join()
        there.copy_in(read.address, x.address, read.nbytes, stream)
        there.synchronize(stream)
        right = bool((read.get() == total).all()) and bool((x.x == total).all())
        works[0].wait()
        comm.barrier()
        return returned, right

    assert set(run_fleet(fleet, body)) == {(True, True)}


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:1,cpu:1"])
def test_memory_that_is_pinned_in_part_is_plain(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> str:
        n = 3 * PAGE // 4
        ones = np.ones(n, np.int32)
        said = ""
        if on_host():
            comm.all_reduce(ones, "sum", ones)
        else:
            part, there = Pinned(ones, pinned=2 * PAGE), DeviceArray.of(ones)
            try:
                comm.all_reduce(part.x, "sum", there)
            except isthmus.ArgumentError as error:
                said = str(error)
            comm.all_reduce(part.x, "sum", part.x)
            ones = part.x
        assert (ones == comm.size).all()
        return said

    said = run_fleet(fleet, body)
    assert "send is memory of the host and recv of the device; give both of one, or pinned memory" in said[0]


@pytest.mark.parametrize("fleet", ["nvidia:2", "nvidia:1,amd:1,cpu:1"])
def test_messages_of_pinned_memory_meet_all_others(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> None:
        following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for turn in range(3):
            for count in (10, 300_000):
                kinds = ["pinned", "device", "plain"]
                place = "plain" if on_host() else kinds[(comm.rank + turn) % 3]
                other = "plain" if on_host() else kinds[(comm.rank + 2 * turn + 1) % 3]
                x = Placed.image(contribution(comm.rank, count, "int32"), place)
                y = Placed.image(np.zeros(count, np.int32), other)
                with isthmus.group():
                    comm.send(x.x if isinstance(x, Pinned) else x, following)
                    comm.recv(y.x if isinstance(y, Pinned) else y, before)
                got = y.get() if isinstance(y, DeviceArray) else y.x if isinstance(y, Pinned) else y
                same(got, contribution(before, count, "int32"), (turn, count))

    run_fleet(fleet, body)
