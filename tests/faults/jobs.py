"""Ranks that tests may harm: started by a zygote, spoken to over a connection, waited for by pidfd."""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

import isthmus
from isthmus import launch
from patience import SOON, patient

HERE = Path(__file__).resolve().parent
ONECCL = HERE.parents[1] / "build" / "oneccl" / "libccl.so.2"
SHAPES = ("shm", "tcp")  # all in shared memory; two islands with TCP between them
DEADLINE = patient(40)  # of operations whose deadline no test is about: it never decides
RARELY = {"HEARTBEAT_MS": 5000}  # settings: who is late with an answer has 2.5 s for it, and is not taken for silent before
HEARD = DEADLINE + SOON  # within which a rank says what became of them
AT_FORK: frozenset[str] = frozenset()  # in a rank: what the process that it was forked from had imported


class Me:
    """What a rank's function is given: who it is, how to join the others, how to speak to the test."""

    def __init__(self, rank: int, world: int, options: dict[str, Any]) -> None:
        self.rank, self.world, self.options = rank, world, options
        self.comms: list[isthmus.Comm] = []
        self.channel: Any = None

    def init(self, **more: Any) -> isthmus.Comm:
        options = {**self.options, **more}
        if (options.get("island") or "").isupper() and "settings" not in options:
            options["settings"] = {"CCL": "oneccl", "CCL_LIBRARY": str(ONECCL)}
        self.comms.append(isthmus.init(self.rank, self.world, **options))
        return self.comms[-1]

    def send(self, kind: str, value: object = None) -> None:
        self.channel.send_bytes(cloudpickle.dumps((kind, value)))

    def hear(self, timeout: float = HEARD) -> Any:
        """What the test said with Rank.tell."""
        assert self.channel.poll(timeout), "the test said nothing"
        return self.channel.recv()

    def caught(self, call: Callable[[], object]) -> dict[str, Any]:
        """How `call` failed: class, text, when (CLOCK_MONOTONIC), how long it took. It must fail."""
        begin = time.monotonic()
        try:
            call()
        except (isthmus.Error, KeyboardInterrupt) as error:
            now = time.monotonic()
            said = {"kind": type(error).__name__, "text": str(error), "at": now, "took": now - begin, "rank": self.rank}
            return {**said, "ranks": getattr(error, "ranks", ())}
        raise AssertionError("the call did not fail")


class Rank:
    """The test's side of one rank."""

    def __init__(self, zygote: Zygote, rank: int) -> None:
        self.zygote, self.rank = zygote, rank
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = zygote.fork(theirs)
        self.pidfd = os.pidfd_open(self.pid)
        self.channel = mpc.Connection(ours.detach())
        self.status: int | None = None

    def next(self, timeout: float = HEARD) -> tuple[str, Any]:
        """The rank's next message; ("ended", exit status) where it died without one."""
        if self.channel in mpc.wait([self.channel, self.pidfd], timeout):
            with suppress(EOFError, ConnectionError):
                return cloudpickle.loads(self.channel.recv_bytes())
        elif self.pidfd not in mpc.wait([self.pidfd], 0):
            raise AssertionError(f"rank {self.rank} said nothing within {timeout} s")
        return "ended", self.wait(SOON)

    def expect(self, kind: str) -> Any:
        got, value = self.next()
        assert got == kind, f"rank {self.rank}: expected '{kind}', got '{got}': {value}"
        return value

    def result(self) -> Any:
        value = self.expect("result")
        assert self.wait(SOON) == 0
        return value

    def tell(self, value: object) -> None:
        self.channel.send(value)

    def signal(self, number: int) -> float:
        """Sends the signal; the time of it."""
        signal.pidfd_send_signal(self.pidfd, number)
        return time.monotonic()

    def wait(self, timeout: float = SOON) -> int:
        """The exit status, once the process has ended."""
        if self.status is None:
            assert mpc.wait([self.pidfd], timeout), f"rank {self.rank} (pid {self.pid}) did not end within {timeout} s"
            self.status = self.zygote.wait(self.pid)
        return self.status

    def tell_rest(self) -> None:
        """Prints what the rank has said that no test has read, and how its process ended, for the output of a failure."""
        with suppress(Exception):  # another failure is what the test is about
            while self.channel.poll():
                print(f"rank {self.rank} said", *cloudpickle.loads(self.channel.recv_bytes()))
        if self.status is None and mpc.wait([self.pidfd], 0):
            print(f"rank {self.rank} (pid {self.pid}) ended with status {self.wait()}")

    def close(self) -> None:
        if self.status is None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self.wait(SOON)
        self.channel.close()
        os.close(self.pidfd)


class Zygote:
    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair()
        with theirs:
            folders = [HERE, HERE.parent, HERE.parent / "python"]
            path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "zygote.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Threads of a library for linear algebra would not be there after a fork.
                env={**os.environ, "PYTHONPATH": path, "ISTHMUS_LOG": "error", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )

    def fork(self, channel: socket.socket) -> int:
        socket.send_fds(self.requests, [b"f"], [channel.fileno()])
        return self._answer()

    def wait(self, pid: int) -> int:
        self.requests.sendall(b"w" + struct.pack("q", pid))
        return self._answer()

    def _answer(self) -> int:
        data = self.requests.recv(8, socket.MSG_WAITALL)
        assert len(data) == 8, "the zygote has ended"
        return int(struct.unpack("q", data)[0])

    def close(self) -> None:
        self.requests.close()
        self.process.wait(SOON)


def islands(shape: str, world: int) -> list[str | None]:
    """Of a shape's ranks; "AAb" is one letter a rank, and capitals have oneCCL (Me.init)."""
    if shape not in SHAPES:
        return list(shape)
    return [None] * world if shape == "shm" else ["a" if rank < (world + 1) // 2 else "b" for rank in range(world)]


@contextmanager
def job(
    zygote: Zygote, world: int, body: Callable[[Me], Any], shape: str = "shm", timeout: float = DEADLINE, **options: Any
) -> Iterator[list[Rank]]:
    """`world` ranks that run body(me). At the end none of them is left."""
    address = f"127.0.0.1:{launch.free_port()}"
    labels = islands(shape, world)
    ranks: list[Rank] = []
    try:
        for rank in range(world):
            ranks.append(Rank(zygote, rank))
            given = {
                "address": address,
                "timeout": timeout,
                "island": labels[rank],
                "bridge": "tcp" if shape == "tcp" else None,
                **options,
            }
            ranks[rank].channel.send_bytes(cloudpickle.dumps((body, Me(rank, world, given))))
        yield ranks
    except BaseException:
        for one in ranks:
            one.tell_rest()
        raise
    finally:
        for one in ranks:
            one.close()


@contextmanager
def newcomers(
    zygote: Zygote, first: int, count: int, body: Callable[[Me], Any], shape: str = "shm", **options: Any
) -> Iterator[list[Rank]]:
    """Processes that run body(me), where me.rank is a number behind those of the job."""
    made: list[Rank] = []
    try:
        for number in range(first, first + count):
            made.append(Rank(zygote, number))
            given = {"timeout": DEADLINE, "bridge": "tcp" if shape == "tcp" else None, "island": None, **options}
            if shape == "tcp" and "island" not in options:
                given["island"] = "b"
            made[-1].channel.send_bytes(cloudpickle.dumps((body, Me(number, first + count, given))))
        yield made
    except BaseException:
        for one in made:
            one.tell_rest()
        raise
    finally:
        for one in made:
            one.close()


def total(comm: isthmus.Comm, me: Me) -> float:
    """The sum of what the ranks had for numbers at first, by an operation that goes in chunks."""
    x = np.full(300_000, me.rank, np.float64)
    comm.all_reduce(x)
    assert (x == x[0]).all()
    return float(x[0])


def forever(comm: isthmus.Comm) -> None:
    x = np.ones(200_000, np.float32)
    while True:
        comm.all_reduce(x, "max")


def until_failed(comm: isthmus.Comm) -> None:
    """Waits until this rank has heard that the communicator has failed."""
    until = time.monotonic() + HEARD
    while comm.error is None:
        assert time.monotonic() < until, "the communicator has not failed"
        time.sleep(0.001)


def names_in_dev_shm(ranks: list[Rank]) -> list[str]:
    """What lies there of these ranks, or under our own name; others on this machine may have theirs."""
    numbers = "|".join(str(rank.pid) for rank in ranks)
    return [name for name in os.listdir("/dev/shm") if re.search(rf"isthmus|(?<!\d)({numbers})(?!\d)", name)]


def results(ranks: list[Rank]) -> list[Any]:
    return [rank.result() for rank in ranks]


def all_say(ranks: list[Rank], kind: str) -> list[Any]:
    return [rank.expect(kind) for rank in ranks]
