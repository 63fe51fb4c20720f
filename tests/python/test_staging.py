"""Staging memory: a little carries everything, many communicators share it, and a fast path that finds no room is told."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import OnDevice, on_host, run_fleet
from islands import run_islands
from test_islands import contribution, expected

LITTLE = {"ISTHMUS_STAGING_BYTES": "4M"}


def same(got: Any, want: Any, what: object) -> None:
    assert (np.asarray(got).ravel() == np.asarray(want).ravel()).all(), what


def everything(comm: Any, count: int) -> None:
    """Every collective and a ring of messages, `count` int32 for each rank: sums of these have one right value."""
    n, me = comm.size, comm.rank

    def x(rank: int) -> Any:
        return contribution(rank, count, "int32")

    def room(elements: int = count) -> Any:
        return np.zeros(elements, np.int32)

    joined, total = np.concatenate([x(r) for r in range(n)]), expected(n, count, "int32", "sum")
    wide = np.concatenate([x(me + r) for r in range(n)])
    counts = [count + r for r in range(n)]
    ragged = [contribution(r, counts[r], "int32") for r in range(n)]
    same(comm.all_reduce(x(me), "sum", room()), total, "all_reduce")
    same(comm.all_gather(x(me), room(n * count)), joined, "all_gather")
    same(comm.all_gather_v(ragged[me], counts, room(sum(counts))), np.concatenate(ragged), "all_gather_v")
    same(comm.reduce_scatter(wide, "sum", room()), np.stack([x(r + me) for r in range(n)]).sum(0), "reduce_scatter")
    same(comm.all_to_all(wide, room(n * count)), wide, "all_to_all")
    for root in (0, n - 1):
        reduced = comm.reduce(x(me), root, "sum", room())
        gathered = comm.gather(x(me), root, room(n * count))
        if me == root:
            same(reduced, total, "reduce")
            same(gathered, joined, "gather")
        same(comm.broadcast(x(root) if me == root else room(), root), x(root), "broadcast")
        same(comm.scatter(joined.reshape(n, count) if me == root else None, root, room()), x(me), "scatter")
    got = room()
    sent = comm.send(x(me), (me + 1) % n, async_op=True)
    comm.recv(got, (me - 1) % n)
    sent.wait()
    same(got, x((me - 1) % n), "recv")


def long_and_short(comm: isthmus.Comm) -> None:
    where = comm if on_host() else OnDevice(comm)
    for count in (300_000, 20, 1_500_000):
        everything(where, count)
        everything(comm, count)  # host memory, also on ranks with a device
    stats = isthmus.context_stats()
    assert stats["staging_used"] <= stats["staging_limit"] == 4 << 20


@pytest.mark.computes
@pytest.mark.product(8)
@pytest.mark.parametrize(
    ("fleet", "bridge"),
    [
        ("nvidia:2,amd:2,cpu:1", None),
        ("nvidia:2,amd:2,cpu:1", "tcp"),
        ("nvidia:1,amd:1", None),
        ("nvidia:1,amd:1,cpu:1", "tcp"),
        ("ascend:2,cpu:1", None),
        ("nvidia:3", None),
        ("nvidia:2,amd:2,ascend:2,cpu:2", None),
        ("nvidia:2,amd:2,ascend:2,cpu:2", "tcp"),
    ],
)
def test_four_mebibytes_carry_everything_over_devices(fleet: str, bridge: str | None) -> None:
    run_fleet(fleet, long_and_short, bridge=bridge, env=LITTLE, timeout=300)


def long_on_the_host(comm: isthmus.Comm) -> None:
    everything(comm, 3_000_000)
    # Several at once, each longer than the staging memory.
    count = 2_500_000
    x = contribution(comm.rank, count, "int32")
    works = [comm.all_reduce(x, "sum", np.zeros_like(x), async_op=True) for _ in range(3)]
    for work in works:
        same(work.wait(), expected(comm.size, count, "int32", "sum"), "in flight")
    # What lies between blocks, and behind the last, is nobody's to write.
    counts, gap = [count + r for r in range(comm.size)], 1001
    displs = [r * (count + gap) for r in range(comm.size)]
    out = np.full(displs[-1] + counts[-1] + gap, -7, np.int32)
    comm.all_gather_v(contribution(comm.rank, counts[comm.rank], "int32"), counts, out, displs=displs)
    want = np.full_like(out, -7)
    for r in range(comm.size):
        want[displs[r] : displs[r] + counts[r]] = contribution(r, counts[r], "int32")
    same(out, want, "all_gather_v with gaps")
    assert isthmus.context_stats()["staging_limit"] == 8 << 20


@pytest.mark.computes
@pytest.mark.parametrize(
    ("fleet", "switches"),
    [
        ("nvidia:2", {}),
        ("nvidia:2", {"CUDA_NO_STREAM_VALUES": "1"}),
        ("nvidia:2", {"QUEUES": "1"}),
        ("amd:2,cpu:1", {}),
        ("nvidia:2,amd:2", {}),
        ("ascend:2", {}),
    ],
    ids=str,
)
def test_host_memory_longer_than_the_staging_memory_goes_through_it_in_pieces(
    fleet: str, switches: dict[str, str]
) -> None:
    """On ranks that a library serves. Hardly more can be pinned than the staging memory."""
    env = {"ISTHMUS_STAGING_BYTES": "8M"}
    run_fleet(fleet, long_on_the_host, env=env, switches={"PINNED": str(12 << 20), **switches}, timeout=300)


@pytest.mark.computes
@pytest.mark.product(8)
@pytest.mark.parametrize("bridge", ["shm", "tcp"])
@pytest.mark.parametrize("mebibytes", [1, 4])
def test_little_staging_carries_everything_over_hosts(bridge: str, mebibytes: int) -> None:
    def body(comm: isthmus.Comm) -> None:
        for count in (300_000, 1_500_000):
            everything(comm, count)

    run_islands("a:2,b:2", body, bridge=bridge, env={"ISTHMUS_STAGING_BYTES": f"{mebibytes}M"})


def used_in_turn(comm: isthmus.Comm, communicators: int, counts: tuple[int, ...]) -> dict[str, Any]:
    comms = [comm.split(0, comm.rank) for _ in range(communicators)]
    for count in counts:
        for one in comms:
            same(one.all_reduce(contribution(one.rank, count, "int32")), expected(one.size, count, "int32", "sum"), count)
    works = []
    for one in comms:  # all at once, which is more than there is room for at one time
        x = contribution(one.rank, counts[0], "int32")
        works.append((one.all_reduce(x, async_op=True), x))
    for work, _ in works:
        same(work.wait(), expected(comm.size, counts[0], "int32", "sum"), "in flight")
    return isthmus.context_stats()


@pytest.mark.everything
@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_two_hundred_communicators_of_a_mixed_fleet_live_in_one_process(bridge: str | None) -> None:
    for stats in run_fleet("nvidia:2,amd:2,ascend:2,cpu:2", used_in_turn, 200, (80_000,), bridge=bridge, timeout=600):
        assert stats["communicators"] == 201
        assert stats["staging_used"] <= stats["staging_limit"]
        assert stats["threads"] < 8 and stats["descriptors"] < 40, stats


@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_communicators_that_find_no_staging_memory_get_what_others_do_not_use(bridge: str | None) -> None:
    little = {"ISTHMUS_STAGING_BYTES": "8M"}
    for stats in run_fleet("nvidia:2,amd:1,cpu:1", used_in_turn, 20, (80_000, 400_000), bridge=bridge, env=little):
        assert stats["communicators"] == 21 and stats["staging_used"] <= stats["staging_limit"] == 8 << 20


def heard(body: Callable[[isthmus.Comm], Any]) -> Callable[[], tuple[Any, str]]:
    """A rank's body that makes the communicator, and what the process has said on stderr."""

    def one() -> tuple[Any, str]:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            with isthmus.init() as comm:
                result = body(comm)
            file.seek(0)
            return result, file.read().decode()

    return one


def test_a_process_with_a_device_says_what_became_of_the_pages_that_it_asked_for() -> None:
    def body(comm: isthmus.Comm) -> Any:
        with comm.split(0, comm.rank):  # has the same memory, and tells nothing
            return isthmus.context_stats()["staging_pages"]

    (device, told), (host, silent) = run_fleet("nvidia:1,cpu:1", heard(body), init=False, env={"ISTHMUS_LOG": "info"})
    assert host is None and "staging memory for" not in silent, "nothing is pinned, so nothing is asked for"
    assert device["elsewhere"] <= device["looked_at"]
    assert device["huge_bytes"] == 0 or not device["lost"], device
    lines = [line for line in told.splitlines() if "staging memory for" in line]
    assert len(lines) == bool(device["lost"]), told
    assert all(device["lost"] in line for line in lines), lines


@pytest.mark.parametrize(
    ("settings", "lost", "words"),
    [
        ({}, 0, ""),
        ({"ISTHMUS_STAGING_BYTES": "4M"}, 2, "chunks of 20480 bytes and not 131072"),
        ({"ISTHMUS_STAGING_BYTES": "256M"}, 0, ""),
        ({"ISTHMUS_CHUNK_BYTES": "1M"}, 1, "chunks of 688128 bytes and not 1048576"),
        ({"ISTHMUS_CHUNK_BYTES": "64M"}, 1, "chunks of 688128 bytes and not 67108864"),
        ({"ISTHMUS_STAGING_BYTES": "16M", "ISTHMUS_CHUNK_BYTES": "4K"}, 0, ""),
    ],
)
def test_a_fast_path_that_finds_no_room_is_one_warning_and_stands_in_the_topology(
    settings: dict[str, str], lost: int, words: str
) -> None:
    def body(comm: isthmus.Comm) -> Any:
        with comm.split(0, comm.rank) as another:  # loses the same, and says it in its topology alone
            return comm.topology()["staging"], another.topology()["staging"]

    for (one, another), text in run_fleet("nvidia:1,amd:1", heard(body), init=False, env=settings):
        assert len(one["lost"]) == lost and one["lost"] == another["lost"], one
        assert (one["ring_bytes"] > 0) is (one["recv_slots"] > 0) is not any("no ring" in why for why in one["lost"])
        assert text.count("topology() says which") == lost and words in text, text


def test_the_communicators_for_which_there_is_no_ring_any_more_say_so() -> None:
    def body(comm: isthmus.Comm) -> list[bool]:
        comms = [comm.split(0, comm.rank) for _ in range(12)]
        for one in comms:
            x, out = contribution(one.rank, 200_000, "int32"), np.zeros(200_000, np.int32)
            same(OnDevice(one).all_reduce(x, "sum", out), expected(2, 200_000, "int32", "sum"), "sum")
        return [bool(one.topology()["staging"]["lost"]) for one in comms]

    for lost, text in run_fleet("nvidia:1,amd:1", heard(body), init=False, env={"ISTHMUS_STAGING_BYTES": "128M"}):
        assert lost == sorted(lost) and lost[-1] and not lost[0]
        assert text.count("no ring in the staging memory") == 1, text
