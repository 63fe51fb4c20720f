"""Groups of forked children: their own, beside their parents' and after them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus.torch
import torch_ranks
from events import until
from family import fork, reap
from patience import SOON
from torch_ranks import raises

TOGETHER = "torch"  # whose ranks are forked by one server


def talk() -> None:
    """The default group's collectives, a part of it and what its futures give; the values must be right."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.full((1 << 12,), rank + 1.0)
    dist.all_reduce(x)
    assert (x == world * (world + 1) / 2).all()
    y = torch.full((20,), rank + 1.0)
    future = dist.all_reduce(y[::2], async_op=True).get_future().then(lambda f: f.value()[0].sum().item())
    assert future.wait() == 10 * world * (world + 1) / 2
    gathered = [torch.empty(1) for _ in range(world)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    assert [g.item() for g in gathered] == list(range(world))
    part = dist.new_group([world - 1])
    if rank == world - 1:
        one = torch.ones(1)
        dist.all_reduce(one, group=part)
        assert one.item() == 1


def siblings(count: int, folder: str, body: Callable[[], Any] = talk, leave: bool = True) -> list[int]:
    """Children that are the ranks of a default group of their own, which they leave at the end, or do not."""

    def child(rank: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        torch_ranks.init_group(folder, rank, count)
        body()
        if leave:
            dist.destroy_process_group()

    return [fork(lambda rank=rank: child(rank)) for rank in range(count)]  # type: ignore[misc]


def test_forked_children_have_a_group_while_their_parent_goes_on_with_its_own() -> None:
    def body() -> None:
        talk()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            children = siblings(3, folder) + siblings(2, other, leave=False)
            for _ in range(3):
                talk()
            reap(children)
        talk()

    torch_ranks.run(2, body)


def test_forked_children_have_a_group_when_their_parent_has_left_its_own() -> None:
    def body() -> None:
        talk()
        dist.destroy_process_group()
        with tempfile.TemporaryDirectory() as folder:
            reap(siblings(3, folder))

    torch_ranks.run(2, body)


def test_a_grandchild_has_a_group_beside_its_parents() -> None:
    def body() -> None:
        talk()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:

            def child() -> None:
                talk()
                if dist.get_rank() == 0:
                    reap(siblings(2, other))
                talk()

            reap(siblings(2, folder, child))
        talk()

    torch_ranks.run(1, body)


def test_the_parents_group_and_work_are_refused_in_the_child_with_what_to_do_and_are_unharmed() -> None:
    def body() -> None:
        other = 1 - dist.get_rank()
        part = dist.new_group([0, 1])
        got = torch.zeros(8)
        pending = dist.irecv(got, other)
        assert pending is not None
        future = dist.all_reduce(torch.ones(20)[::2], async_op=True).get_future()
        future.wait()

        def child() -> None:
            nonlocal part, pending
            for call in (
                lambda: dist.all_reduce(torch.ones(1)),
                lambda: dist.all_reduce(torch.ones(1), group=part),
                lambda: dist.all_reduce(torch.ones(1), async_op=True),
                lambda: dist.send(torch.ones(1), other),
                isthmus.torch.topology,
                isthmus.torch.dump,
            ):
                said = raises("belongs to the parent process", call)
                assert "make one here (destroy_process_group" in said, said
            raises("wait in the parent", pending.wait)
            assert pending.exception() is not None and not pending.is_success()
            part = pending = None
            torch_ranks.backend().abort()
            dist.destroy_process_group()

        reap([fork(child) for _ in range(2)])
        sent = dist.isend(torch.full((8,), 7.0), other)
        pending.wait()
        sent.wait()
        assert (got == 7).all()
        talk()

    torch_ranks.run(2, body)


def test_a_fork_amid_the_operations_of_other_threads_leaves_the_child_well() -> None:
    def body() -> None:
        part = dist.new_group([0, 1])
        over = threading.Event()
        failed: list[BaseException] = []

        def turn() -> bool:
            """Both ranks have the same answer."""
            dist.all_reduce(torch.ones(2000)[::2], group=part, async_op=True).get_future().then(lambda f: f.value()).wait()
            going = torch.full((1,), float(not over.is_set()))
            dist.all_reduce(going, dist.ReduceOp.MAX, group=part)
            return bool(going.item())

        def work() -> None:
            try:
                while turn():
                    pass
            except BaseException as error:
                failed.append(error)

        talk()  # torch itself does not survive a fork amid the first use of one of its kernels
        turn()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                with tempfile.TemporaryDirectory() as folder:
                    reap(siblings(2, folder))
        finally:
            over.set()
            thread.join()
        assert not failed, failed
        talk()

    torch_ranks.run(2, body)


def worker(rank: int, folder: str) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    torch_ranks.init_group(folder, rank, 2)
    talk()
    if rank == 1:
        sys.exit(0)  # its group is left to the end of the interpreter
    dist.destroy_process_group()


def test_workers_that_multiprocessing_forks_have_a_group() -> None:
    def body() -> None:
        talk()
        context = multiprocessing.get_context("fork")
        with tempfile.TemporaryDirectory() as folder:
            workers = [context.Process(target=worker, args=(rank, folder)) for rank in range(2)]
            for process in workers:
                process.start()
            for process in workers:
                process.join(SOON)
            assert [process.exitcode for process in workers] == [0, 0]
        talk()

    torch_ranks.run(2, body)


def test_a_childs_flight_record_is_its_own_and_read_by_the_analyser(tmp_path: Path) -> None:
    def body(records: Path) -> None:
        talk()

        def child() -> None:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGUSR1)
            until((records / f"{dist.get_rank()}.{os.getpid()}").exists, "the child's record")

        with tempfile.TemporaryDirectory() as folder:
            children = siblings(2, folder, child)
            reap(children)
        for rank, process in enumerate(children):
            record = pickle.loads((records / f"{rank}.{process}").read_bytes())
            assert [entry["profiling_name"] for entry in record["entries"]] == ["gloo:barrier"], record

    torch_ranks.run(2, body, tmp_path, env={"ISTHMUS_DUMP": str(tmp_path / "%r.%p")})


ENDS = """
import os, sys
import torch
import torch.distributed as dist
import isthmus.torch

torch.set_num_threads(1)
folder = sys.argv[1]

def group(name, rank, size):
    dist.init_process_group("isthmus", init_method=f"file://{{folder}}/{{name}}", rank=rank, world_size=size)
    x = torch.ones(20)
    dist.all_reduce(x[::2], async_op=True).wait()
    assert x.sum() == 10 + 10 * size

def use(what, rank):
    if what == "nothing":
        return
    dist.destroy_process_group()  # its parent's
    if what == "its parent's":
        return
    group(what, rank, 2)
    if what == "its own, which it leaves":
        dist.destroy_process_group()

group("parents", 0, 1)
children = {{}}
mine = None
for what in ("nothing", "its parent's", "its own, which it leaves", "its own"):
    for rank in range(2):
        child = os.fork()
        if child == 0:
            mine = what, rank
            break
        children[child] = what
    if mine:
        break
if mine is None:
    for child, what in children.items():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, what
    dist.all_reduce(torch.ones(4))
    print("the parent is well")
    dist.destroy_process_group()
    sys.exit()
use(*mine)
{end}
"""
LAST = {"by os._exit": "os._exit(0)", "by sys.exit": "sys.exit(0)", "at the end of the program": ""}


@pytest.mark.parametrize("end", LAST)
def test_children_end_well_whatever_they_have_used(end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS.format(end=LAST[end]), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=4 * SOON, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the parent is well\n"), ended.stderr
    assert "isthmus" not in ended.stderr, ended.stderr
