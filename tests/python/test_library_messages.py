"""Messages of groups between ranks of one vendor are calls of that vendor's library, and no byte of them goes by the host.

A group waits here as long as it takes for the other side's, so what goes by the library is settled by events.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from test_one_vendor import COUNT, Calls, Watch, prefix

PATIENT = {"GROUP_WAIT_MS": 60000}


def numbers(sender: int, receiver: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.float32) + 1000 * sender + receiver


def on_island(comm: isthmus.Comm) -> set[int]:
    """The other ranks that this rank's library serves."""
    groups = comm.topology()["groups"]
    return {r for g in groups if comm.rank in g["ranks"] and g["ccl"] for r in g["ranks"]} - {comm.rank}


class Exchange:
    """One group: a message to each of the ranks `to` and one from each of `of`."""

    def __init__(self, comm: isthmus.Comm, to: set[int], of: set[int], count: int = COUNT, several: int = 1) -> None:
        self.comm, self.count, self.several = comm, count, several
        every = [(peer, i) for i in range(several) for peer in range(comm.size)]
        self.there = {(q, i): self.array(numbers(comm.rank, q, count) + i) for q, i in every if q in to}
        self.back = {(q, i): self.array(np.zeros(count, np.float32)) for q, i in every if q in of}

    @staticmethod
    def array(host: np.ndarray[Any, Any]) -> Any:
        return host if on_host() else DeviceArray.of(host)

    def run(self, stream: int | None = None, tag: int = 0) -> None:
        with isthmus.group():
            for (q, _), x in self.there.items():
                self.comm.send(x, q, tag=tag, stream=stream)
            for (q, _), y in self.back.items():
                self.comm.recv(y, q, tag=tag, stream=stream)

    def right(self) -> bool:
        return all(
            ((y if on_host() else y.get()) == numbers(q, self.comm.rank, self.count) + i).all()
            for (q, i), y in self.back.items()
        )


def watched(comm: isthmus.Comm, exchange: Exchange, **options: Any) -> tuple[Calls, tuple[int, int], bool]:
    """What the library was asked for in the second run, the bytes that were copied, and whether all came as it was sent."""
    watch = None if on_host() else Watch()
    exchange.run(**options)  # the first may allocate
    comm.barrier()
    if watch:
        watch.reset()
    exchange.run(**options)
    if options.get("stream") and not on_host():
        vendor().synchronize(options["stream"])
    comm.barrier()
    made = (watch.calls(), watch.carried()) if watch else ({}, (0, 0))
    return *made, exchange.right()


def expected(sends: int, receives: int) -> Calls:
    if not sends + receives:
        return {}
    if prefix() == "Hccl":
        return {"BatchSendRecv": 1}
    return {name: n for name, n in {"Send": sends, "Recv": receives, "GroupStart": 1, "GroupEnd": 1}.items() if n}


def exchanges(of: Callable[[isthmus.Comm], None], settings: dict[str, Any] | None = None) -> Callable[[], None]:
    def body() -> None:
        with isthmus.init(settings=PATIENT | (settings or {})) as comm:
            of(comm)

    return body


@pytest.mark.parametrize("fleet", ["nvidia:3", "amd:2", "ascend:3"])
def test_the_messages_of_groups_of_one_vendors_ranks_are_calls_of_its_library_alone(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> None:
        others = set(range(comm.size)) - {comm.rank}
        following, before = {(comm.rank + 1) % comm.size}, {(comm.rank - 1) % comm.size}
        for stream in (None, vendor().stream()):
            for count in (7, COUNT, 5_000_000):
                for to, of in ((others, others), (following, before)):
                    calls, carried, right = watched(comm, Exchange(comm, to, of, count), stream=stream)
                    assert right
                    assert calls == expected(len(to), len(of)), (stream, count)
                    assert carried == (0, 0), "no byte goes by the host"
        told = comm.topology()["library_messages"]
        assert told["may"] and told["messages"] == 2 * 2 * 3 * 2 * (len(others) + 1)
        assert str(comm.explain("send", root=following.pop(), nbytes=4096)).count(vendor().family)

    run_fleet(fleet, exchanges(body), init=False)


@pytest.mark.parametrize("settings", [{"LIBRARY_MESSAGES": "off"}, {"CCL": "none"}], ids=["off", "no library"])
def test_without_it_the_same_bytes_go_by_the_host(settings: dict[str, str]) -> None:
    """The control of the test above."""

    def body(comm: isthmus.Comm) -> None:
        others = set(range(comm.size)) - {comm.rank}
        calls, (out, back), right = watched(comm, Exchange(comm, others, others))
        assert right and not calls
        assert out == back == 4 * COUNT * len(others)
        assert not comm.topology()["library_messages"]["may"]

    run_fleet("nvidia:2", exchanges(body, settings), init=False)


@pytest.mark.parametrize("fleet", ["nvidia:2,amd:2", "nvidia:2,cpu:1,ascend:2"])
@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_in_a_mixed_communicator_the_ranks_of_one_island_do_so_and_the_others_bytes_alone_go_by_the_host(
    fleet: str, bridge: str | None
) -> None:
    def body(comm: isthmus.Comm) -> None:
        others = set(range(comm.size)) - {comm.rank}
        calls, (out, back), right = watched(comm, Exchange(comm, others, others))
        assert right
        if on_host():
            return
        inside = on_island(comm)
        assert len(inside) == 1
        assert calls == expected(1, 1)
        assert out == back == 4 * COUNT * len(others - inside)

    run_fleet(fleet, exchanges(body), init=False, bridge=bridge)


@pytest.mark.parametrize(("fleet", "by_library"), [("nvidia:2", True), ("ascend:2", False)])
def test_several_messages_with_one_rank_are_the_librarys_where_its_groups_take_them(fleet: str, by_library: bool) -> None:
    def body(comm: isthmus.Comm) -> None:
        other = {1 - comm.rank}
        calls, carried, right = watched(comm, Exchange(comm, other, other, several=5))
        assert right
        assert calls == (expected(5, 5) if by_library else {})
        assert (carried == (0, 0)) == by_library

    run_fleet(fleet, exchanges(body), init=False)


def ways_past_the_library(comm: isthmus.Comm) -> dict[str, Callable[[], Any]]:
    """Exchanges with the other rank in which some message is none for the library. Each gives what came."""
    me, other = comm.rank, 1 - comm.rank
    there, back = DeviceArray.of(numbers(me, other)), DeviceArray.of(np.zeros(COUNT, np.float32))
    host = np.zeros(COUNT, np.float32)

    def group(into: Any, **options: Any) -> Any:
        back.set(np.zeros(COUNT, np.float32))
        with isthmus.group():
            comm.send(there, other, **options.get("send", {}))
            comm.recv(into, *options.get("source", [other]), **options.get("recv", {}))
        return into if isinstance(into, np.ndarray) else into.get()

    def plain() -> Any:
        back.set(np.zeros(COUNT, np.float32))
        coming = comm.recv(back, other, async_op=True)
        comm.send(there, other)
        coming.wait()
        return back.get()

    def against_a_plain_call() -> Any:
        if me == 0:
            return plain()
        return group(back)

    return {
        "a tag": lambda: group(back, send={"tag": 4}, recv={"tag": 4}),
        "from any rank": lambda: group(back, source=[]),
        "into host memory": lambda: group(host),
        "outside of groups": plain,
        "a group against plain calls": against_a_plain_call,
    }


def test_what_is_not_for_the_library_goes_by_the_host_and_waits_no_longer_than_its_group() -> None:
    def body() -> None:
        with isthmus.init(settings={"GROUP_WAIT_MS": 20}) as comm:
            for name, call in ways_past_the_library(comm).items():
                for _ in range(3):
                    comm.barrier()
                    assert (call() == numbers(1 - comm.rank, comm.rank)).all(), name
            other = {1 - comm.rank}
            comm.barrier()
            before = comm.topology()["library_messages"]["messages"]
            exchange = Exchange(comm, other, other)
            for _ in range(2000):  # at some time the two come to their groups at about the same time
                comm.barrier()
                exchange.run()
                assert exchange.right()
                carried = np.array([comm.topology()["library_messages"]["messages"] - before])
                comm.all_reduce(carried, "min")
                if carried[0] > 0:
                    return  # so the numbers are still alike on both sides
            raise AssertionError("no message has gone by the library any more")

    run_fleet("nvidia:2", body, init=False)


def test_who_has_called_outside_of_a_group_holds_up_no_group_of_the_other_side() -> None:
    """The group would wait for a minute, and has the word at once."""

    def body(comm: isthmus.Comm) -> None:
        other = 1 - comm.rank
        there, back = DeviceArray.of(numbers(comm.rank, other)), DeviceArray.of(np.zeros(COUNT, np.float32))
        if comm.rank == 0:
            coming = comm.recv(back, other, async_op=True)
            comm.send(there, other)
            comm.barrier()
            coming.wait()
        else:
            comm.barrier()
            with isthmus.group():
                comm.send(there, other)
                comm.recv(back, other)
        assert (back.get() == numbers(other, comm.rank)).all()

    run_fleet("nvidia:2", exchanges(body), init=False, timeout=50)


def test_sizes_that_differ_are_told_as_they_are_told_of_other_messages() -> None:
    def body(comm: isthmus.Comm) -> str:
        other = 1 - comm.rank
        there, back = DeviceArray.of(numbers(comm.rank, other)), DeviceArray.of(np.zeros(COUNT + 1, np.float32))
        try:
            with isthmus.group():
                comm.send(there, other)
                comm.recv(back if comm.rank else back.part(0, COUNT), other)
        except isthmus.Error as error:
            return str(error)
        return ""

    sender, receiver = run_fleet("nvidia:2", lambda: with_comm(body), init=False)
    assert "both sides must name the same count and dtype" in receiver, receiver
    # Its message may lie in the other side's slots, and so be sent, before that side finds that it is not what it wants.
    assert sender == "" or "rank 1" in sender or "both sides must name" in sender, sender


def with_comm(body: Callable[[isthmus.Comm], Any], settings: dict[str, Any] | None = None) -> Any:
    comm = isthmus.init(settings=PATIENT | (settings or {}))
    result = body(comm)
    comm.destroy()
    return result


@pytest.mark.parametrize("fleet", ["nvidia:3", "nvidia:2,amd:2", "ascend:3"])
@pytest.mark.parametrize("switches", [{}, {"QUEUES": "4"}], ids=["one queue", "four queues"])
def test_groups_single_messages_and_collectives_in_random_order_all_end_with_their_numbers(
    fleet: str, switches: dict[str, str]
) -> None:
    """All ranks make the same calls, but for single messages, which each end calls at a place of its own."""

    def body() -> int:
        with isthmus.init() as comm:
            chance = np.random.default_rng(11)
            stream = None if on_host() else vendor().stream()
            sums = Exchange.array(np.ones(COUNT, np.float32))
            pending: list[Any] = []
            checks: list[Callable[[], bool]] = []
            for _ in range(60):
                kind, count = int(chance.integers(4)), int(chance.choice([5, 3000, COUNT]))
                way = chance.random((comm.size, comm.size)) < 0.5
                single = [int(r) for r in chance.permutation(comm.size)[:2]]
                if kind == 0:
                    pending.append(comm.all_reduce(sums, "max", async_op=True))
                elif kind == 1:
                    if comm.rank == single[0]:
                        pending.append(comm.send(Exchange.array(numbers(*single, count)), single[1], async_op=True))
                    elif comm.rank == single[1]:
                        into = Exchange.array(np.zeros(count, np.float32))
                        pending.append(comm.recv(into, single[0], async_op=True))
                        checks.append(
                            lambda into=into, single=single, count=count: bool(
                                ((into if on_host() else into.get()) == numbers(*single, count)).all()
                            )
                        )
                else:
                    to = {q for q in range(comm.size) if way[comm.rank][q]} - {comm.rank}
                    of = {q for q in range(comm.size) if way[q][comm.rank]} - {comm.rank}
                    exchange = Exchange(comm, to, of, count)
                    if to or of:
                        exchange.run(stream if kind == 2 else None)
                    checks.append(exchange.right)
                    if kind == 2 and stream:
                        vendor().synchronize(stream)
            for work in pending:
                work.wait()
            assert all(check() for check in checks)
            return int(comm.topology()["library_messages"]["messages"])

    run_fleet(fleet, body, init=False, switches=switches)


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2,nvidia:1", "ascend:2"])
def test_groups_of_one_thread_and_collectives_of_another_both_end(fleet: str) -> None:
    """The two threads of a rank share its device, and come to it in an order of their own on each rank."""

    def body() -> int:
        with isthmus.init() as comm, ThreadPoolExecutor(1) as second:
            beside = comm.split(0)
            assert beside is not None
            sums = DeviceArray.of(np.ones(3000, np.float32))

            def collectives() -> None:
                vendor().here()
                for _ in range(150):
                    beside.all_reduce(sums, "max")

            others = set(range(comm.size)) - {comm.rank}
            work = second.submit(collectives)
            for turn in range(100):
                exchange = Exchange(comm, others, others, 5000 + 400 * turn)
                exchange.run()
                assert exchange.right(), turn
            work.result()
            assert (sums.get() == 1).all()
            beside.destroy()
            return int(comm.topology()["library_messages"]["messages"])

    run_fleet(fleet, body, init=False)


def test_batch_isend_irecv_of_torch_is_the_librarys_too() -> None:
    pytest.importorskip("torch")

    def body() -> tuple[Calls, tuple[int, int]]:
        import torch
        import torch.distributed as dist

        from test_torch_devices import start

        device = start()
        rank, world = dist.get_rank(), dist.get_world_size()
        mine, got = torch.full((COUNT,), float(rank), device=device), torch.zeros(COUNT, device=device)
        watch = Watch()
        for turn in range(2):
            dist.barrier()
            torch.rehearsal.synchronize()
            if turn:
                watch.reset()
            operations = [dist.P2POp(dist.irecv, got, (rank - 1) % world), dist.P2POp(dist.isend, mine, (rank + 1) % world)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            torch.rehearsal.synchronize()
        made = watch.calls(), watch.carried()
        assert got.eq(float((rank - 1) % world)).all().item()
        dist.barrier()
        dist.destroy_process_group()
        return made

    environment = {"OMP_NUM_THREADS": "1", "ISTHMUS_GROUP_WAIT_MS": "60000"}
    found = run_fleet("nvidia:3", body, init=False, modules=("torch_preloaded",), env=environment)
    assert found == [({"Send": 1, "Recv": 1, "GroupStart": 1, "GroupEnd": 1}, (0, 0))] * 3
