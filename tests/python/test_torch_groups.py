"""Groups: how they come to be, meet in a store, split, time out, end, and come again."""

from __future__ import annotations

import copy
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import isthmus.torch
import torch_ranks
from patience import SOON, patient
from torch_ranks import hear, raises, tell

TOGETHER = "torch"  # whose ranks are forked by one server

CPU = torch.device("cpu")


def total(group: dist.ProcessGroup | None = None) -> float:
    """The sum of 1 over the group."""
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


def test_the_default_group_serves_every_device_by_one_backend_of_our_name() -> None:
    def body() -> None:
        assert dist.get_backend() == "isthmus"
        backend = torch_ranks.backend()
        assert backend.name() == "isthmus" and isinstance(backend, isthmus.torch.Backend)
        group = dist.group.WORLD
        assert all(group._get_backend(torch.device(d)) is backend for d in ("cpu", "cuda", "xpu", "privateuseone"))

    torch_ranks.run(1, body)


def test_new_group_works_for_members_and_leaves_the_others_alone() -> None:
    def body() -> None:
        rank = dist.get_rank()
        even, odd = dist.new_group([0, 2]), dist.new_group([1])
        if rank in (0, 2):
            assert total(even) == 2 and dist.get_rank(even) == rank // 2
            out = [torch.empty(1), torch.empty(1)]
            dist.all_gather(out, torch.tensor([float(rank)]), group=even)
            assert [t.item() for t in out] == [0, 2]
            x = torch.tensor([float(rank)])
            dist.broadcast(x, src=2, group=even)
            assert x.item() == 2
        else:
            assert total(odd) == 1
        assert total() == 3

    torch_ranks.run(3, body)


def test_errors_of_a_subgroup_say_which_ranks_it_holds() -> None:
    def body() -> None:
        group = dist.new_group([1, 2])
        dist.barrier()
        if dist.get_rank() == 1:
            group.set_timeout(timedelta(seconds=0.3))
            assert "global ranks 1,2" in raises("timeout", lambda: total(group))
            tell("failed")
        else:
            hear("failed")

    torch_ranks.run(3, body)


def test_many_subgroups_live_side_by_side() -> None:
    def body() -> None:
        groups = [dist.new_group([0, 1]) for _ in range(20)]
        works = []
        tensors = [torch.ones(10) for _ in groups]
        for group, x in zip(groups, tensors, strict=True):
            works.append(dist.all_reduce(x, group=group, async_op=True))
        for work in works:
            work.wait()
        assert all(x.eq(2).all() for x in tensors)
        for group in groups[::2]:
            dist.destroy_process_group(group)
        assert total(groups[1]) == 2

    torch_ranks.run(2, body)


def test_subgroups_can_be_made_by_their_members_alone() -> None:
    def body() -> None:
        if dist.get_rank() < 2:
            group = dist.new_group([0, 1], use_local_synchronization=True)
            assert total(group) == 2
        dist.barrier()

    torch_ranks.run(3, body)


def test_a_group_can_be_destroyed_and_made_again_in_the_same_store() -> None:
    def body() -> None:
        store = dist.FileStore(os.environ["STORE"], 2)
        rank = int(os.environ["RANK"])
        for _ in range(5):
            dist.init_process_group("isthmus", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SOON))
            assert total() == 2 and total(dist.new_group([0, 1])) == 2
            dist.destroy_process_group()
        with pytest.raises(ValueError):
            dist.get_rank()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch_ranks.run(2, body, env={"STORE": f"{folder}/store"}, init=False)


def _tcp_store(rank: int, world: int) -> dist.Store:
    """A store of the test's own; rank 0 writes its port where the others find it."""
    path = os.environ["PORT_FILE"]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
        with open(path + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(path + ".new", path)
        return store
    end = time.monotonic() + SOON
    while not os.path.exists(path):
        assert time.monotonic() < end
        time.sleep(0.01)
    with open(path) as file:
        return dist.TCPStore("127.0.0.1", int(file.read()), world, is_master=False, wait_for_workers=False)


def meet(store: dist.Store, what: str, count: int) -> None:
    """Waits until `count` processes have come here."""
    store.add(what, 1)
    end = time.monotonic() + SOON
    while store.add(what, 0) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def leave(store: dist.Store, rank: int, count: int) -> None:
    """Like meet; rank 0, which serves the store, goes last."""
    meet(store, "leave", count)
    store.add("left", 1)
    end = time.monotonic() + SOON
    while rank == 0 and store.add("left", 0) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def port_file(tmp_path: object) -> dict[str, str]:
    return {"PORT_FILE": f"{tmp_path}/port"}


def _create(store: dist.Store, rank: int, world: int, seconds: float = SOON, name: str = "test") -> isthmus.torch.Backend:
    from isthmus import _torch

    return _torch.create(store, rank, world, timedelta(seconds=seconds), name, [], None)


def test_a_tcp_store_is_left_as_it_was_found(port_file: dict[str, str]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        store = _tcp_store(rank, 3)
        for key in ("ready", "counted", "created"):  # the keys of this test
            store.add(key, 0)
        meet(store, "ready", 3)
        before = store.num_keys()
        meet(store, "counted", 3)
        backend = _create(store, rank, 3)
        meet(store, "created", 3)
        end = time.monotonic() + SOON
        while store.num_keys() != before:
            assert time.monotonic() < end
            time.sleep(0.01)
        backend.barrier().wait()
        backend.shutdown()
        leave(store, rank, 3)

    torch_ranks.run(3, body, env=port_file, init=False)


def test_keys_of_a_dead_attempt_do_no_harm(port_file: dict[str, str]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        store, stale = _tcp_store(rank, 2), b"0123456789abcdef" + b"y" * 32
        if rank == 0:  # what an attempt that died in its rendezvous leaves
            store.set("isthmus/hello/1", b"x" * 16)
            store.set("isthmus/roster", stale)
            store.set("isthmus/0123456789abcdef/commit", b"1")
            store.set("isthmus/0123456789abcdef/0/1", b"stale")
            store.set("go", b"1")
            backend = _create(store, rank, 2)
        else:
            store.wait(["go"])
            while store.get("isthmus/roster") == stale:  # rank 0 has met the dead rank's key when it writes its own
                time.sleep(0.01)
            backend = _create(store, rank, 2)
        x = torch.ones(1)
        backend.allreduce([x]).wait()
        assert x.item() == 2
        backend.shutdown()
        leave(store, rank, 2)

    torch_ranks.run(2, body, env=port_file, init=False)


def test_a_rank_that_does_not_come_is_named_within_the_timeout(port_file: dict[str, str]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        store = _tcp_store(rank, 3)
        meet(store, "there", 3)
        if rank != 2:
            if rank == 0:
                store.wait(["isthmus/hello/1"])
            text = raises("timeout", lambda: _create(store, rank, 3, seconds=0.3), dist.DistBackendError)
            assert ": rank 2 did not arrive within 0.3 s" in text if rank == 0 else "rank 0 did not" in text
        leave(store, rank, 3)

    torch_ranks.run(3, body, env=port_file, init=False)


def test_two_processes_with_one_rank_are_found_out(port_file: dict[str, str]) -> None:
    def body() -> str:
        number = int(os.environ["RANK"])
        rank = min(number, 1)  # two of the three say that they are rank 1
        store = _tcp_store(number, 2)
        meet(store, "there", 3)
        if number == 0:
            store.wait(["refused"])
        try:
            backend = _create(store, rank, 2)
            backend.shutdown()
            outcome = "joined"
        except dist.DistBackendError as error:
            outcome = str(error)
            store.set("refused", outcome)
        leave(store, number, 3)
        return outcome

    outcomes = torch_ranks.run(3, body, env=port_file, init=False)
    refused = [o for o in outcomes if o != "joined"]
    assert outcomes[0] == "joined" and len(refused) == 1 and all("another process is rank 1" in o for o in refused)


def test_the_devices_name_in_the_stores_prefix_is_ignored(port_file: dict[str, str]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        store = dist.PrefixStore("group/", _tcp_store(rank, 3))
        device = ["cpu", "cuda", "xpu"][rank]  # ranks of three vendors
        backend = _create(dist.PrefixStore(f"{device}/", store), rank, 3)
        backend.barrier().wait()
        backend.shutdown()
        leave(store.underlying_store, rank, 3)

    torch_ranks.run(3, body, env=port_file, init=False)


def test_threads_of_one_process_can_be_the_ranks() -> None:
    store = dist.HashStore()
    totals: list[float] = []

    def rank(r: int) -> None:
        backend = _create(store, r, 3)
        x = torch.ones(1000)
        backend.allreduce([x]).wait()
        totals.append(x[0].item())
        backend.shutdown()

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert totals == [3, 3, 3]


class Shelf(dist.Store):
    """A store written in Python, with what the meeting needs and no more. Shared by the threads of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self.changed:
            self.values[key] = value.encode() if isinstance(value, str) else bytes(value)
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            self.changed.notify_all()
            return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        with self.changed:
            return all(key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=SOON)) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds())


def sums(world: int, store: Callable[[int], dist.Store], times: int = 1) -> list[float]:
    """Of ones, by threads that meet in these stores as ranks, so many times after each other. Who fails has none."""
    all_of_them: list[float] = []

    def one(rank: int) -> None:
        for _ in range(times):
            backend = _create(store(rank), rank, world)
            x = torch.ones(1)
            backend.allreduce([x]).wait()
            all_of_them.append(x.item())
            backend.shutdown()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    return all_of_them


def test_ranks_meet_in_a_store_that_is_written_in_python() -> None:
    """It cannot be cloned, and deletes nothing: a second meeting of the same name finds what the first has left."""

    def body() -> None:
        store = Shelf()
        assert sums(2, lambda rank: store, 2) == [2.0] * 4

    torch_ranks.run(1, body, init=False)


class OneRanks(dist.Store):
    """A shelf as one rank sees it."""

    def __init__(self, shelf: Shelf, rank: int) -> None:
        super().__init__()
        self.shelf, self.rank = shelf, rank

    def set(self, key: str, value: bytes | str) -> None:
        self.shelf.set(key, value)

    def get(self, key: str) -> bytes:
        return self.shelf.get(key)

    def add(self, key: str, amount: int) -> int:
        return self.shelf.add(key, amount)

    def deleteKey(self, key: str) -> bool:  # the name that C++ calls it by
        with self.shelf.changed:
            return self.shelf.values.pop(key, None) is not None

    def check(self, keys: list[str]) -> bool:
        return self.shelf.check(keys)


class SlowLook(OneRanks):
    """The last rank looks whether rank 0 has changed the roster, hears that it is there, and is slow: before it reads the
    roster, all have confirmed it. Rank 1 does so once the last rank has looked.
    """

    confirmed = ""

    def set(self, key: str, value: bytes | str) -> None:
        if "/ack/" in key and self.rank == 1:
            self.shelf.wait(["test/looked"])
        super().set(key, value)
        if "/ack/" in key:
            self.confirmed = key.split("/ack/")[0]

    def check(self, keys: list[str]) -> bool:
        there = super().check(keys)
        if keys == ["isthmus/roster"] and self.rank == 2 and self.confirmed and not self.shelf.check(["test/looked"]):
            assert there
            self.shelf.set("test/looked", "")
            self.shelf.wait([f"{self.confirmed}/commit"])
        return there


def test_a_rank_that_looks_at_the_roster_while_the_others_confirm_it_is_not_left_behind() -> None:
    def body() -> list[str]:
        shelf = Shelf()
        assert sums(3, lambda rank: SlowLook(shelf, rank)) == [3.0] * 3
        return sorted(shelf.values)

    assert torch_ranks.run(1, body, init=False) == [["test/looked"]]


class Withdrawn(OneRanks):
    """A shelf with an old roster, which is removed when rank 1 looks for the second time, before that look is answered."""

    looks = 0

    def check(self, keys: list[str]) -> bool:
        there = super().check(keys)
        self.looks += keys == ["isthmus/roster"]
        if self.rank == 1 and self.looks == 2:
            self.deleteKey("isthmus/roster")
        elif self.rank == 1 and self.looks == 3:
            self.shelf.set("test/waits", "")
        return there

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self.shelf.changed:
            found = self.shelf.values.get(key)
            if found == expected or (found is None and not expected):
                self.shelf.values[key] = found = desired
            return expected if found is None else found


def test_a_rank_that_finds_a_roster_that_is_removed_just_then_waits_for_the_next_one() -> None:
    def body() -> list[float]:
        shelf = Shelf()
        shelf.set("isthmus/roster", "old")

        def store(rank: int) -> dist.Store:
            if rank == 0:
                shelf.wait(["test/waits"])
            return Withdrawn(shelf, rank)

        return sums(2, store)

    assert torch_ranks.run(1, body, init=False) == [[2.0, 2.0]]


class LastWord(dist.Store):
    """Another store, for a rank that dies when it would write its blob of one round of the exchange."""

    def __init__(self, store: dist.Store, round: int) -> None:
        super().__init__()
        self.store, self.round = store, round

    def set(self, key: str, value: bytes | str) -> None:
        if key.endswith(f"/{self.round}/1"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)


@pytest.mark.parametrize("round", [2, 3, 4, 5])
def test_a_rank_that_dies_while_a_group_is_made_is_named_by_the_others_at_once(
    round: int, port_file: dict[str, str]
) -> None:
    """Rounds 0 and 1 carry the ranks' offers; the votes of rounds 2 to 5 are cast by ranks that are connected."""

    def body() -> str:
        rank = int(os.environ["RANK"])
        store = _tcp_store(rank, 3)
        if rank == 1:
            _create(LastWord(store, round), rank, 3)
        said = raises("rank 1 (pid", lambda: _create(store, rank, 3))
        assert "rendezvous of group test" in said
        leave(store, rank, 2)
        return said

    torch_ranks.run(3, body, env=port_file, init=False, expect={1: -9})


def connections_to(port: int) -> int:
    """How many sockets of this process are connected to that port. (The kernel's tables change while one reads them.)"""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                found += one.getpeername()[1] == port
        except (OSError, IndexError):  # it is closed by now, no socket, not connected, or has no port
            pass
    return found


def test_connections_to_the_store_do_not_grow_with_the_groups(port_file: dict[str, str]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        store = _tcp_store(rank, 2)
        dist.init_process_group("isthmus", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SOON))
        dist.new_group([0, 1])
        first = connections_to(store.port)
        assert first > 0
        groups = [dist.new_group([0, 1]) for _ in range(5)]
        assert total(groups[-1]) == 2
        assert connections_to(store.port) <= first
        leave(store, rank, 2)
        dist.destroy_process_group()

    torch_ranks.run(2, body, env=port_file, init=False)


def test_ranks_that_name_other_members_get_no_group_and_are_told_whom_each_named() -> None:
    """Ranks 0 and 2 come first, and meet under the name that both groups have; ranks 1 and 3 come later."""

    def body() -> None:
        rank = dist.get_rank()
        named = [0, 3] if rank in (0, 3) else [1, 2]
        if rank in (1, 3):
            hear("told 0", "told 2")
        said = raises("are not of one communicator", lambda: dist.new_group(named))
        assert "global ranks 0,3" in said and "global ranks 1-2" in said and "new_group" in said
        tell(f"told {rank}")
        hear(*(f"told {r}" for r in range(4)))
        assert total() == 4

    torch_ranks.run(4, body)


def test_split_makes_a_child_of_the_named_ranks_only() -> None:
    def body() -> None:
        rank = dist.get_rank()
        group = dist.group.WORLD
        options = copy.deepcopy(torch_ranks.backend().options)
        child = group.split_group([0, 2], opts=options, group_name="child", timeout=timedelta(seconds=SOON))
        if rank == 1:
            assert child is None
        else:
            assert child is not None
            backend = child._get_backend(CPU)
            assert isinstance(backend, isthmus.torch.Backend) and backend.size() == 2 and backend.rank() == rank // 2
            backend._set_sequence_number_for_group()
            x = torch.ones(1)
            child.allreduce([x]).wait()
            assert x.item() == 2
            assert backend.options.global_ranks_in_group == [0, 2]
            child.shutdown()
        assert torch_ranks.backend().options.global_ranks_in_group == []
        assert total() == 3

    torch_ranks.run(3, body)


def test_a_split_makes_one_child_for_all_kinds_of_devices(tmp_path: Path) -> None:
    """torch asks the backend for one child for each, and keeps the first."""

    def body(log: Path) -> None:
        group = dist.group.WORLD
        for name in ("first", "second", "third"):
            child = group.split_group([0, 1], group_name=name, timeout=timedelta(seconds=SOON))
            x = torch.ones(1)
            child.allreduce([x]).wait()
            assert x.item() == 2
        dist.barrier()
        made = [line for line in log.read_text().splitlines() if f"rank {dist.get_rank()} of 2" in line]
        for name in ("first", "second", "third"):
            assert sum(f"communicator '{name}'" in line for line in made) == 1, made

    log = tmp_path / "log"
    torch_ranks.run(2, body, log, env={"ISTHMUS_LOG": "info", "ISTHMUS_LOG_FILE": str(log)})


def test_what_device_bound_groups_ask_of_the_backend_is_there() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        assert backend.supports_splitting and backend.supports_coalescing
        backend.perform_nocolor_split(torch.device("cuda", 0))
        backend.eager_connect_single_device(CPU)
        copied = copy.deepcopy(backend.options)
        assert copied is not backend.options and copied._timeout == backend.options._timeout
        assert isinstance(copied, isthmus.torch.Options) and isinstance(copy.copy(copied), isthmus.torch.Options)

    torch_ranks.run(1, body)


def test_options_choose_the_island_of_a_rank() -> None:
    def body(folder: str) -> list[str]:
        rank = int(os.environ["RANK"])
        options = isthmus.torch.Options(island="east" if rank < 2 else "west")
        torch_ranks.init_group(folder, rank, 3, options)
        assert total() == 3
        return isthmus.torch.topology()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        topologies = torch_ranks.run(3, body, folder, init=False)
    assert all("east" in str(t) and "west" in str(t) for t in topologies)


def test_the_timeout_is_the_programs_else_that_of_the_options_else_that_of_the_environment() -> None:
    def body() -> list[float]:
        def of(**given: object) -> float:
            group = dist.new_group([0], **given)
            return isthmus.torch.backend_of(group).options._timeout.total_seconds()

        dist.init_process_group("isthmus", store=dist.HashStore(), rank=0, world_size=1)
        settings = isthmus.torch.Options(settings="CHUNK_BYTES=1M;TIMEOUT=55")
        first = isthmus.torch.backend_of().options._timeout.total_seconds()
        both = isthmus.torch.Options(settings="TIMEOUT=55", timeout=timedelta(seconds=44))
        given = [of(pg_options=options, timeout=timedelta(seconds=33)) for options in (settings, both)]
        return [first, of(pg_options=settings), of(pg_options=both), *given]

    assert torch_ranks.run(1, body, env={"ISTHMUS_TIMEOUT": "77"}, init=False) == [[77.0, 55.0, 44.0, 33.0, 33.0]]


def test_ranks_that_met_in_a_file_leave_none_behind_and_the_next_ones_meet_there_again() -> None:
    def body(folder: str) -> None:
        path, rank = Path(folder, "meeting"), int(os.environ["RANK"])
        beside = dist.FileStore(f"{path}.beside", 2)

        def together(what: str) -> None:
            beside.set(f"{what} {rank}", "")
            beside.wait([f"{what} {r}" for r in range(2)], timedelta(seconds=SOON))

        for run in range(2):
            dist.init_process_group("isthmus", init_method=f"file://{path}", rank=rank, world_size=2)
            child = dist.new_group([0, 1])
            assert path.exists() and total() == total(child) == 2
            del child
            dist.destroy_process_group()
            gc.collect()
            together(f"ended {run}")
            assert not path.exists()
            together(f"looked {run}")

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch_ranks.run(2, body, folder, init=False)


def test_options_of_another_kind_are_refused() -> None:
    def body(folder: str) -> None:
        raises("isthmus.torch.Options", lambda: torch_ranks.init_group(folder, 0, 1, object()), TypeError)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch_ranks.run(1, body, folder, init=False)


def test_a_bad_setting_in_the_options_is_an_error_that_names_it() -> None:
    def body(folder: str) -> None:
        options = isthmus.torch.Options(bridge="rope")
        text = raises("ISTHMUS_BRIDGE", lambda: torch_ranks.init_group(folder, 0, 1, options), ValueError)
        assert "rope" in text

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        torch_ranks.run(1, body, folder, init=False)


def test_a_group_shows_its_topology_plans_and_recorder() -> None:
    def body() -> None:
        x = torch.ones(100_000)
        dist.all_reduce(x)
        assert isthmus.torch.topology()
        plan = isthmus.torch.explain("all_reduce", nbytes=x.nbytes, op=dist.ReduceOp.SUM)
        assert plan["text"]
        assert isthmus.torch.explain("broadcast", count=7, dtype=torch.bool, root=1)
        raises("no multiple", lambda: isthmus.torch.explain("all_reduce", nbytes=6), ValueError)
        assert "all_reduce" in str(isthmus.torch.dump())
        assert isthmus.torch.context_stats()

    torch_ranks.run(2, body)


def test_torchs_own_checks_of_calls_hide_nothing_of_a_group() -> None:
    def body() -> None:
        group = dist.new_group([0, 1])
        assert total(group) == total() == 2
        for one in (group, None):
            assert type(isthmus.torch.backend_of(one)) is isthmus.torch.Backend
            assert len(isthmus.torch.topology(one)["ranks"]) == 2
            assert isthmus.torch.explain("all_reduce", nbytes=1 << 20, group=one)["text"]
            assert isthmus.torch.dump(one)["entries"]
        assert isthmus.torch.flight_record()["entries"]

    torch_ranks.run(2, body, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def test_what_is_done_to_options_that_were_handed_in_or_out_changes_no_group() -> None:
    def body() -> None:
        given = isthmus.torch.Options(timeout=timedelta(seconds=SOON))
        group = dist.new_group([0, 1], pg_options=given, timeout=timedelta(seconds=SOON))
        backend = isthmus.torch.backend_of(group)
        name = backend.options.group_name
        for options in (given, backend.options):
            options._timeout, options.group_name, options.island = timedelta(seconds=1), "another", "another"
        child = group.split_group(
            [0, 1], group_name="child", timeout=timedelta(seconds=2 * SOON)
        )  # with no options of its own
        assert child is not None and isthmus.torch.backend_of(child).options.group_name == "child"
        child.shutdown()
        assert backend.options._timeout == timedelta(seconds=SOON)
        assert (backend.options.group_name, backend.options.island) == (name, "")
        assert total(group) == 2

    torch_ranks.run(2, body)


def test_get_error_tells_the_state_of_the_group() -> None:
    def body() -> None:
        from torch._C._distributed_c10d import ErrorType

        backend = torch_ranks.backend()
        assert backend.get_error() == ErrorType.SUCCESS
        if dist.get_rank() == 1:
            dist.isend(torch.ones(1), 0)
        else:
            dist.recv(torch.ones(1), 1)
            backend.abort()
            backend.abort()  # again is nothing new
        raises("aborted", lambda: [total() for _ in range(2)])
        assert backend.get_error() == ErrorType.COMM_ERROR

    torch_ranks.run(2, body)


def test_a_group_that_was_shut_down_says_so() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        dist.barrier()
        dist.destroy_process_group()
        raises("was shut down", lambda: backend.allreduce([torch.ones(1)]), ValueError)
        backend.shutdown()
        backend.abort()

    torch_ranks.run(2, body)


def test_shutdown_is_not_collective() -> None:
    def body() -> None:
        store, rank = torch_ranks.store(), dist.get_rank()
        dist.barrier()
        if rank == 0:
            store.wait(["rank 1 is out"])
        dist.destroy_process_group()
        store.set(f"rank {rank} is out", "")

    torch_ranks.run(2, body)


def test_shutdown_while_another_thread_is_inside_releases_it() -> None:
    def body() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            tell("out of the barrier")
            hear("released")
            return
        hear("out of the barrier")  # else the abort could end this one
        caught: list[str] = []
        backend = torch_ranks.backend()
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        thread = threading.Thread(target=lambda: caught.append(raises("aborted", lambda: backend.barrier(opts))))
        thread.start()
        torch_ranks.once_inside(backend.shutdown)
        thread.join(SOON)
        assert caught and not thread.is_alive()
        tell("released")

    torch_ranks.run(2, body)


def test_a_signals_handler_may_destroy_the_group_whose_call_it_has_interrupted() -> None:
    """The call ends at once, and the group is gone when the call has ended."""

    def body() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            tell("out of the barrier")
            hear("destroyed")
            return
        store = torch_ranks.store()
        hear("out of the barrier")  # else the abort could end this one
        signal.signal(signal.SIGUSR1, lambda *_: dist.destroy_process_group())
        interrupts = threading.Thread(target=lambda: torch_ranks.once_inside(lambda: os.kill(os.getpid(), signal.SIGUSR1)))
        interrupts.start()
        begin = time.monotonic()
        raises("aborted", lambda: dist.all_reduce(torch.ones(2)))
        assert time.monotonic() - begin < SOON / 3
        interrupts.join(SOON)
        assert isthmus.context_stats().get("communicators", 0) == 0
        store.set("word/destroyed", "said")

    torch_ranks.run(2, body)


def test_destroying_a_group_with_work_pending_does_not_hang() -> None:
    def body() -> None:
        store = torch_ranks.store()
        if dist.get_rank() == 0:
            dist.group.WORLD.set_timeout(timedelta(seconds=0.3))
            work = dist.all_reduce(torch.ones(3), async_op=True)
            dist.destroy_process_group()
            raises("", work.wait)
            store.set("over", "")
        else:
            store.wait(["over"])

    torch_ranks.run(2, body)


_EXIT_WITHOUT_DESTROY = """
import sys, torch, torch.distributed as dist, isthmus.torch
dist.init_process_group("isthmus", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
x = torch.ones(3)
future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: print("done", f.value()[0].tolist(), flush=True))
future.wait()
pending = dist.irecv(torch.empty(3), 1 - dist.get_rank())   # never sent, and never waited for
pending.get_future().then(lambda f: None)
"""


def test_a_program_that_never_destroys_its_group_ends_by_itself(tmp_path: object) -> None:
    command = [sys.executable, "-c", _EXIT_WITHOUT_DESTROY, f"{tmp_path}/store"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(r)], **pipes) for r in range(2)]
    for process in ranks:
        out, err = process.communicate(timeout=patient(60))
        assert process.returncode == 0, err
        assert out.strip() == "done [2.0, 2.0, 2.0]"


# Each thread has the only reference to its group. One is inside of a call when all groups are shut down, and lets go of its
# group as soon as the call has ended, which shutdown_all() waits for.
_LET_GO_MEANWHILE = """
import threading, time, torch, torch.distributed as dist, isthmus.torch
from datetime import timedelta
from pathlib import Path
from isthmus.torch import _torch

def rank(store, number, made, over):
    group = _torch.create(store, number, 2, timedelta(seconds=60), "", [], None)
    made[number].set()
    if number == 1:
        over.wait()
        return
    options = dist.AllreduceOptions()
    options.asyncOp = False
    try:
        group.allreduce([torch.ones(3)], options)
    except RuntimeError:
        pass

def sleeps(thread):
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(") ")[2][0] == "S"

for turn in range(20):
    store, made, over = dist.HashStore(), [threading.Event(), threading.Event()], threading.Event()
    ranks = [threading.Thread(target=rank, args=(store, number, made, over)) for number in range(2)]
    for thread in ranks:
        thread.start()
    for event in made:
        event.wait()
    while sum(sleeps(ranks[0]) for _ in range(5)) < 5:  # in the call, for which rank 1 does not come
        time.sleep(0.001)
    _torch.shutdown_all()
    over.set()
    for thread in ranks:
        thread.join()
print("over", flush=True)
"""


def test_a_group_that_its_last_holder_lets_go_while_all_are_shut_down_is_there_until_then() -> None:
    # What was freed is overwritten, so a group that is gone is no group any more.
    ended = subprocess.run(
        [sys.executable, "-c", _LET_GO_MEANWHILE],
        **{"capture_output": True, "text": True, "timeout": patient(120), "env": {**os.environ, "MALLOC_PERTURB_": "165"}},
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "over"), ended.stderr


def test_a_forked_child_may_exit_and_its_parent_works_on() -> None:
    def body() -> None:
        x = torch.ones(10)
        dist.all_reduce(x[::2], async_op=True).wait()  # the background thread runs now
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError:
                os._exit(7)
            os._exit(8)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert total() == 2

    torch_ranks.run(2, body)


def test_shrink_group_makes_a_group_of_the_others_and_the_excluded_need_not_call() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank == 1:
            hear("shrunk")
            return
        group = dist.shrink_group([1])
        assert group is dist.group.WORLD and dist.get_world_size() == 3 and dist.get_rank() == (0, None, 1, 2)[rank]
        assert total() == 3 and isinstance(torch_ranks.backend(), isthmus.torch.Backend)
        out = [torch.empty(1) for _ in range(3)]
        dist.all_gather(out, torch.tensor([float(rank)]))
        assert [t.item() for t in out] == [0, 2, 3]
        assert torch_ranks.backend().options.global_ranks_in_group == [0, 2, 3]
        if rank == 0:
            tell("shrunk")

    torch_ranks.run(4, body)


def test_a_failed_group_is_shrunk_with_abort_and_that_alone() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raises("peer lost", lambda: [total() for _ in range(100)])
        failure = torch_ranks.backend().failure()
        assert failure is not None and failure.startswith("peer lost - ") and "rank 1" in failure, failure
        raises("a communicator that has failed is shrunk with abort", lambda: dist.shrink_group([1]))
        dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        assert total() == 2 and torch_ranks.backend().failure() is None

    torch_ranks.run(3, body, expect={1: -signal.SIGKILL})


def test_a_subgroup_is_shrunk_by_its_own_ranks_and_may_get_another_timeout() -> None:
    def body() -> None:
        rank = dist.get_rank()
        sub = dist.new_group([0, 2, 3])
        if rank in (2, 3):
            options = isthmus.torch.Options(island="a")
            raises("keep their island", lambda: dist.shrink_group([0], sub, pg_options=options), ValueError)
            options = isthmus.torch.Options(timeout=timedelta(seconds=SOON / 2))
            small = dist.shrink_group([0], group=sub, pg_options=options)
            backend = isthmus.torch.backend_of(small)
            assert total(small) == 2 and backend.options._timeout == timedelta(seconds=SOON / 2)
        assert total() == 4

    torch_ranks.run(4, body)


def test_a_shrink_that_makes_no_sense_is_refused_at_once() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        rank = dist.get_rank()
        raises("not a rank of group", lambda: backend.shrink([2], 0), ValueError)
        raises(f"rank {rank} is among those that are excluded", lambda: backend.shrink([rank], 0), ValueError)
        raises("are neither SHRINK_DEFAULT nor SHRINK_ABORT", lambda: backend.shrink([1 - rank], 2), ValueError)
        assert total() == 2

    torch_ranks.run(2, body)


def test_a_shrunk_group_has_the_timeout_that_its_parent_was_given_last() -> None:
    def body() -> None:
        torch_ranks.backend().set_timeout(timedelta(seconds=patient(4)))
        if dist.get_rank() < 2:
            dist.shrink_group([2])
        if dist.get_rank() == 0:
            raises(f"did not finish within {patient(4):g} s", total)
            tell("late")
        else:
            hear("late")

    torch_ranks.run(3, body)


def test_torchs_own_abort_ends_what_is_pending_on_all_ranks_and_the_next_group_works() -> None:
    def body() -> None:
        store, rank = torch_ranks.store(), dist.get_rank()
        if rank == 2:
            hear("pending 0", "pending 1")  # and never calls it
            dist.distributed_c10d._abort_process_group()
        else:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work is not None
            tell(f"pending {rank}")
            raises("aborted", work.wait)
            dist.distributed_c10d._abort_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("isthmus", store=dist.PrefixStore("again", store), rank=rank, world_size=3)
        assert total() == 3

    torch_ranks.run(3, body)


def test_merge_remote_group_makes_one_group_of_several_that_meet_in_a_store() -> None:
    """So a group gets new ranks: those come as a group of their own. The parents go on beside it."""

    def body() -> None:
        store, rank = torch_ranks.store(), dist.get_rank()
        groups = [dist.new_group([0, 1]), dist.new_group([2])]
        parent = groups[rank // 2]
        merged = parent.merge_remote_group(dist.PrefixStore("merge", store), 3, timedelta(seconds=SOON), "merged")
        backend = merged._get_backend(CPU)
        assert isinstance(backend, isthmus.torch.Backend) and backend.size() == merged.size() == 3
        assert backend.options.group_name == "merged" and backend.options._timeout == timedelta(seconds=SOON)
        x = torch.tensor([10.0**rank])
        merged.allreduce([x]).wait()
        assert x.item() == 111
        assert total(parent) == parent.size()
        assert total() == 3
        merged.shutdown()

    torch_ranks.run(3, body)
