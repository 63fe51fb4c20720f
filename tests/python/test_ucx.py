"""The bridge `ucx`: the same results as over TCP, over UCX's TCP and its shared memory, and refusals that say what to do."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch
from ranks import run_processes
from test_staging import everything

try:
    ctypes.CDLL("libucp.so.0")
    HERE = True
except OSError:
    HERE = False
needs_ucx = pytest.mark.skipif(not HERE, reason="libucp.so.0 is not on this machine (Debian: libucx0)")


def over(transports: str) -> dict[str, str]:
    return {"UCX_TLS": transports}


@needs_ucx
@pytest.mark.parametrize("transports", ["tcp", "posix,cma"])
@pytest.mark.parametrize(("world", "islands"), [(2, "a,b"), (3, "a,b,a"), (3, "a,b,c")])
def test_every_collective_and_messages_have_the_right_values(world: int, islands: str, transports: str) -> None:
    def body(comm: isthmus.Comm) -> dict[str, Any]:
        for count in (1, 20, 3000, 300_000):
            everything(comm, count)
        return comm.topology()

    for topology in run_processes(world, body, islands=islands, bridge="ucx", env=over(transports)):
        labels = launch.parse_islands(islands, world)
        assert topology["bridge"] == "ucx"
        for link in topology["links"]:
            apart = labels[link["from"]] != labels[link["to"]]
            assert link["kind"] == ("self" if link["from"] == link["to"] else "ucx" if apart else "memory")
            assert not apart or link["bytes_sent"] > 300_000


@needs_ucx
def test_what_explains_an_operation_says_the_path() -> None:
    def body(comm: isthmus.Comm) -> str:
        return str(comm.explain("all_reduce", nbytes=1 << 20).data)

    for text in run_processes(2, body, islands="a,b", bridge="ucx", env=over("tcp")):
        assert "bridged by UCX" in text, text


@needs_ucx
def test_communicators_that_come_and_go_share_the_links_of_their_processes() -> None:
    def body(comm: isthmus.Comm) -> list[int]:
        counts = []
        for i in range(4):
            part = comm.split(0, key=comm.rank, name=f"part {i}")
            part.all_reduce(np.ones(200_000, np.float32))
            counts.append(isthmus.context_stats()["links"])
            part.destroy()
        return counts

    for counts in run_processes(2, body, islands="a,b", bridge="ucx", env=over("tcp")):
        assert len(set(counts)) == 1, counts


@needs_ucx
def test_an_abort_of_one_communicator_leaves_the_other_as_it_was() -> None:
    def body(comm: isthmus.Comm) -> float:
        part = comm.split(0, key=comm.rank, name="aborted")
        x = np.ones(4_000_000, np.float32)
        comm.barrier()
        if comm.rank == 0:
            work = part.all_reduce(x, async_op=True)  # its data are on their way when it is given up
            part.abort("enough")
            with suppress(isthmus.Error):  # unless it has ended by then
                work.wait()
        with pytest.raises(isthmus.Error):
            for _ in range(2):
                part.all_reduce(x)
        x[:] = 7  # the caller's again
        return float(comm.all_reduce(np.full(1_000_000, comm.rank + 1.0, np.float32))[-1])

    assert run_processes(2, body, islands="a,b", bridge="ucx", env=over("tcp")) == [3.0, 3.0]


@needs_ucx
def test_transports_that_reach_nobody_are_an_error_that_names_the_variable() -> None:
    def body(comm: isthmus.Comm) -> str:
        unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
        comm.broadcast(unique_id)
        os.environ["UCX_TLS"] = "nosuch"
        with pytest.raises(isthmus.Error) as error:
            isthmus.init(comm.rank, 2, unique_id=bytes(unique_id), island="ab"[comm.rank], bridge="ucx", timeout=30)
        return str(error.value)

    for text in run_processes(2, body):
        assert "UCX_TLS" in text and "ucx" in text, text


WITHOUT = """
import sys
from contextlib import suppress
import isthmus
try:
    isthmus.init(0, 1, address="127.0.0.1:{port}", bridge="ucx", timeout=20)
except isthmus.Error as error:
    print(type(error).__name__, error)
"""


def test_where_there_is_no_ucx_the_refusal_says_what_to_install(tmp_path: Any) -> None:
    """A file of that name that is no library, before the system's."""
    (tmp_path / "libucp.so.0").write_text("nothing")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    program = WITHOUT.format(port=launch.free_port())
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("UnsupportedError"), ended
    for said in ("libucp.so.0", "apt-get install libucx0", "ISTHMUS_BRIDGE=tcp"):
        assert said in ended.stdout, ended.stdout


@needs_ucx
def test_a_forked_child_is_told_that_ucx_does_not_outlive_a_fork() -> None:
    def body(comm: isthmus.Comm) -> str:
        comm.barrier()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                isthmus.init(0, 1, address=f"127.0.0.1:{launch.free_port()}", bridge="ucx", timeout=20)
                text = "made"
            except isthmus.Error as error:
                text = str(error)
            os.write(write, text.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            text = said.read()
        os.waitpid(child, 0)
        comm.all_reduce(np.ones(100_000, np.float32))  # the parent's links are as they were
        return text

    for text in run_processes(2, body, islands="a,b", bridge="ucx", env=over("tcp")):
        assert "fork" in text and "UCX" in text, text


@needs_ucx
@pytest.mark.parametrize("transports", ["tcp", "posix,cma"])
def test_a_rank_that_is_killed_is_named(transports: str) -> None:
    def body(comm: isthmus.Comm) -> str:
        x = np.ones(1_000_000, np.float32)
        if comm.rank == 1:
            comm.all_reduce(x, "max")  # the others may be inside of it still
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(isthmus.PeerLostError) as error:
            while True:
                comm.all_reduce(x, "max")
        return str(error.value)

    first, _, last = run_processes(3, body, islands="a,b,c", bridge="ucx", env=over(transports), expect={1: -9})
    assert "rank 1" in first and "rank 1" in last
