"""A forked child makes communicators of its own; its parent's stays its parent's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import run_fleet
from events import inside_a_call, until
from family import fork, reap, siblings
from patience import SOON

Run = Callable[..., list[Any]]


def talk(comm: isthmus.Comm) -> None:
    """Collectives small and large, messages and a part; the values must be right."""
    ranks = comm.size * (comm.size + 1) // 2
    for count in (1, 1000, 1 << 18):
        assert (comm.all_reduce(np.full(count, comm.rank + 1.0)) == ranks).all()
    assert list(comm.all_gather(np.array([comm.rank]))) == list(range(comm.size))
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (1, 1 << 18):
        got = np.zeros(count)
        with isthmus.group():
            comm.send(np.full(count, comm.rank + 0.5), following)
            comm.recv(got, before)
        assert (got == before + 0.5).all()
    with comm.split(comm.rank % 2) as part:
        assert part.all_reduce(np.ones(1))[0] == part.size
    comm.all_reduce(np.ones(1 << 16), async_op=True).wait()


def refusal(call: Callable[[], Any]) -> str:
    """What it says where it uses what is the parent's."""
    with pytest.raises(isthmus.ForkedError) as refused:
        call()
    return str(refused.value)


def test_forked_children_make_a_communicator_while_their_parent_goes_on_with_its_own(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        talk(comm)
        children = siblings(3, talk)
        for _ in range(20):
            talk(comm)
        reap(children)
        talk(comm)

    processes(2, body)


def test_children_of_different_parents_meet_at_an_id_that_their_parents_carried(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        talk(comm)
        up, down = os.pipe(), os.pipe()

        def child() -> None:
            if comm.rank == 0:
                unique_id = isthmus.unique_id()
                os.write(up[1], unique_id)
            else:
                unique_id = os.read(down[0], 128)
            with isthmus.init(comm.rank, comm.size, unique_id=unique_id) as own:
                talk(own)

        children = [fork(child)]
        carried = bytearray(os.read(up[0], 128) if comm.rank == 0 else bytes(128))
        comm.broadcast(carried)
        os.write(down[1], carried)
        reap(children)
        talk(comm)

    processes(3, body)


def test_what_is_the_parents_is_refused_in_the_child_with_what_to_do_and_is_unharmed(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        other = 1 - comm.rank
        part = comm.split(0)
        got = np.zeros(1 << 16)
        pending = comm.recv(got, other, async_op=True)
        ended = comm.all_reduce(np.ones(1), async_op=True)
        ended.wait()

        def child() -> None:
            nonlocal part, pending
            for call in (
                comm.barrier,
                comm.topology,
                comm.dump,
                comm.abort,
                lambda: comm.all_reduce(np.ones(4)),
                lambda: comm.all_reduce(np.ones(4), async_op=True),
                lambda: comm.send(np.ones(1), other),
                lambda: comm.split(0),
                lambda: comm.set_timeout(1),
                lambda: comm.explain("all_reduce", nbytes=4),
            ):
                said = refusal(call)
                assert "belongs to the parent process" in said and "make one here (init, with an address" in said, said
            assert "belongs to the parent process" in str(comm.error)
            assert "wait in the parent" in refusal(pending.wait)
            ended.wait()  # it had ended at the fork
            comm.destroy()
            with pytest.raises(isthmus.ArgumentError, match="destroyed"):
                comm.barrier()
            part = pending = None
            with isthmus.init(0, 1) as own:
                talk(own)

        reap([fork(child) for _ in range(2)])
        comm.send(np.full(1 << 16, 7.0), other)
        pending.wait()
        assert (got == 7.0).all()
        talk(comm)
        talk(part)

    processes(2, body)


def test_a_fork_amid_other_threads_calls_leaves_the_child_well(processes: Run) -> None:
    """Some are inside collectives and messages, some make and destroy communicators, some write to the log."""

    def body(comm: isthmus.Comm) -> None:
        others = [comm.split(0, name=f"of thread {n}") for n in range(2)]
        over = threading.Event()
        failed: list[BaseException] = []

        def until_over(turn: Callable[[], None]) -> None:
            try:
                while not over.is_set():
                    turn()
            except BaseException as error:
                failed.append(error)

        def together(part: isthmus.Comm, count: int) -> None:
            """Both ranks stop in the same turn."""
            going = np.ones(1)
            try:
                while going[0]:
                    part.all_reduce(np.ones(count), async_op=True).wait()
                    going[0] = not over.is_set()
                    part.all_reduce(going, "max")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=together, args=(part, 1 << (4 + 12 * n))) for n, part in enumerate(others)]
        threads.append(threading.Thread(target=until_over, args=(lambda: isthmus.init(0, 1).destroy(),)))
        threads.append(threading.Thread(target=until_over, args=(isthmus.context_stats,)))
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                reap(siblings(2, talk))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not failed, failed
        talk(comm)

    processes(2, body, env={"ISTHMUS_LOG": "debug", "ISTHMUS_LOG_FILE": os.devnull})


def test_a_grandchild_makes_its_own_beside_its_parents(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        def child(own: isthmus.Comm) -> None:
            def grandchild(youngest: isthmus.Comm) -> None:
                talk(youngest)
                for older in (own, comm):
                    assert "belongs to the parent process" in refusal(older.barrier)

            talk(own)
            grandchildren = siblings(2, grandchild)
            talk(own)
            reap(grandchildren)
            talk(own)

        reap(siblings(2, child))
        talk(comm)

    processes(2, body)


def test_an_open_group_of_the_parent_is_none_of_the_childs(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        got = np.zeros(8)
        with isthmus.group():
            comm.send(np.full(8, comm.rank + 1.0), 1 - comm.rank)
            comm.recv(got, 1 - comm.rank)
            reap(siblings(2, talk))
        assert (got == 2.0 - comm.rank).all()

    processes(2, body)


ENDS = """
import os, sys
import numpy as np
import isthmus

comm = isthmus.init(0, 1)
comm.all_reduce(np.ones(4))
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        break
    children.append(child)
else:
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    comm.all_reduce(np.ones(4))
    print("the parent is well")
    sys.exit()
{use}
{end}
"""
USES = {
    "uses nothing": "",
    "has destroyed its own": "isthmus.init(0, 1).destroy()",
    "leaves its own open": "own = isthmus.init(0, 1); pending = own.recv(np.ones(1), 0, async_op=True)",
    "has let go of its parent's": "comm = None",
    "has destroyed its parent's": "comm.destroy()",
}
LAST = {"by os._exit": "os._exit(0)", "by sys.exit": "sys.exit(0)", "at the end of the program": ""}


@pytest.mark.parametrize("end", LAST)
@pytest.mark.parametrize("use", USES)
def test_a_child_ends_well_whatever_it_has_used(use: str, end: str) -> None:
    program = ENDS.format(use=USES[use], end=LAST[end])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SOON, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the parent is well\n", "")


PROCESSES = """
import multiprocessing
import numpy as np
import isthmus.launch

def work(number, address):
    with isthmus.init(number, 3, address=address) as own:
        assert own.all_reduce(np.ones(1 << 16))[-1] == 3

comm = isthmus.init(0, 1)
comm.all_reduce(np.ones(4))
address = "127.0.0.1:%d" % isthmus.launch.free_port()
{destroy}
context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(number, address)) for number in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert [worker.exitcode for worker in workers] == [0, 0, 0]
"""


@pytest.mark.parametrize("destroy", ["", "comm.destroy()"], ids=["which has its own", "which has destroyed its own"])
def test_processes_that_multiprocessing_forks_meet_at_an_address_of_their_own(destroy: str) -> None:
    program = PROCESSES.format(destroy=destroy)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SOON, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:1,cpu:1", "ascend:1,nvidia:1"])
def test_a_device_that_the_parent_has_begun_is_refused_in_the_child_which_may_work_on_the_host(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> None:
        comm.barrier()

        def child() -> None:
            if os.environ["ISTHMUS_DEVICE"] != "host":
                said = refusal(lambda: isthmus.init(0, 1))
                assert "the parent process has begun it, and it does not work in a forked child" in said, said
                assert "spawn" in said and "ISTHMUS_DEVICE=host" in said, said
            assert "belongs to the parent process" in refusal(comm.barrier)
            reap(siblings(2, talk, settings={"DEVICE": "host"}))

        reap([fork(child), *siblings(2, talk, settings={"DEVICE": "host"})])
        comm.barrier()

    run_fleet(fleet, body)


def test_a_childs_lines_in_the_log_have_its_own_process_and_rank(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm) -> list[int]:
        comm.barrier()
        children = siblings(2, talk) if comm.rank == 1 else []
        reap(children)
        return children

    (_, children) = processes(2, body, env={"ISTHMUS_LOG": "info", "ISTHMUS_LOG_FILE": str(tmp_path / "%p.%r")})
    for rank, child in enumerate(children):
        lines = (tmp_path / f"{child}.{rank}").read_text().splitlines()
        assert lines and all(line.startswith(f"[isthmus {child} rank {rank} ") for line in lines), lines
    assert len(list(tmp_path.iterdir())) == 4


def test_a_childs_flight_record_is_its_own(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: Path) -> None:
        comm.barrier()

        def child(own: isthmus.Comm) -> None:
            own.all_reduce(np.ones(4))
            os.kill(os.getpid(), signal.SIGUSR1)
            until((folder / f"{os.getpid()}.{own.rank}").exists, "the child's record")

        children = siblings(2, child)
        reap(children)
        os.kill(os.getpid(), signal.SIGUSR1)
        until((folder / f"{os.getpid()}.{comm.rank}").exists, "the parent's record")
        for rank, process in enumerate(children):
            (record,) = json.loads((folder / f"{process}.{rank}").read_text())
            assert [entry["collective"] for entry in record["entries"]][:1] == ["all_reduce"], record
            (record,) = json.loads((folder / f"{os.getpid()}.{comm.rank}").read_text())
            assert "all_reduce" not in [entry["collective"] for entry in record["entries"]], record

    processes(2, body, tmp_path, env={"ISTHMUS_DUMP": str(tmp_path / "%p.%r")})


def test_a_signal_handler_may_fork_inside_a_call(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, forked: Path) -> None:
        if comm.rank == 1:
            until(forked.exists, "the fork")
            comm.send(np.full(1, 3.0), 0)
            return
        children: list[int] = []

        def handle(*_: object) -> None:
            children.extend(siblings(2, talk))
            forked.touch()

        def rouse() -> None:
            until(lambda: inside_a_call(comm), "the call")
            os.kill(os.getpid(), signal.SIGUSR2)

        signal.signal(signal.SIGUSR2, handle)
        thread = threading.Thread(target=rouse)
        thread.start()
        got = np.zeros(1)
        comm.recv(got, 1)
        thread.join()
        assert got[0] == 3.0
        reap(children)

    processes(2, body, tmp_path / "forked")
