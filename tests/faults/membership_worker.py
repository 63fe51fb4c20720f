"""What a process of membership_cycles.py does: what it is told, one thing after another, and it says what came of it.

Every sum is checked here. Its summands are drawn for each epoch, operation and process.
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import isthmus
from jobs import HEARD, Me
from patience import SOON

KEY = "0123456789abcdef0123456789abcdef"


def summand(seed: int, uid: int, step: int, count: int) -> np.ndarray[Any, Any]:
    return pattern(numbers(seed, uid, step), count)


def numbers(seed: int, uid: int, step: int) -> tuple[int, int]:
    drawn = (seed * 1_000_003 + uid * 7_919 + step * 104_729) * 2_654_435_761 >> 7
    return drawn % 251, drawn // 251 % 65_521


def pattern(of: tuple[int, int], count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.int64) % 97 * of[0] + of[1]


def whole(seed: int, uids: Sequence[int], step: int, count: int) -> np.ndarray[Any, Any]:
    drawn = [numbers(seed, uid, step) for uid in uids]
    return pattern((sum(a for a, _ in drawn), sum(b for _, b in drawn)), count)


def expect(found: Any, wanted: Any, what: str) -> None:
    if not np.array_equal(found, wanted):
        wrong = np.flatnonzero(np.asarray(found) != np.asarray(wanted))
        raise AssertionError(f"{what} is wrong in {len(wrong)} of {len(wanted)} places, first at {wrong[0]}")


def sockets_to(pid: int) -> list[int]:
    """This process's TCP connections over loopback to that process."""
    theirs = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            theirs.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    ends = set()  # (local port, remote port) of their sockets
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[9]}]" in theirs and words[3] == "01":
            ends.add((int(words[1].split(":")[1], 16), int(words[2].split(":")[1], 16)))
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family == socket.AF_INET and (one.getpeername()[1], one.getsockname()[1]) in ends:
                        found.append(int(name))
    return found


def reset(descriptor: int) -> None:
    """Ends a TCP connection by RST: connect() to no family."""
    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    assert ctypes.CDLL(None, use_errno=True).connect(descriptor, nowhere, len(nowhere)) == 0


def arenas_mapped() -> int:
    """Of how many processes this one has the memory, its own too."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in maps if "memfd:isthmus" in line})


def named(descriptor: str) -> str:
    with suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if not name.startswith("socket:"):
            return name
        with socket.socket(fileno=os.dup(int(descriptor))) as one:
            try:
                other: Any = one.getpeername()
            except OSError:
                other = None
            return f"{one.family.name} {one.getsockname()!r} {other!r}"
    return "closed"


class Worker:
    """Does what the test says, one thing after another, and says what came of it."""

    def __init__(self, me: Me) -> None:
        self.me, self.uid = me, me.rank
        self.comm: Any = None
        self.left: list[tuple[Any, Any]] = []  # buffers of operations that failed, and what they held then

    def serve(self) -> str:
        while True:
            name, words = self.me.hear(10 * HEARD)
            if name == "end":
                return "ended well"
            try:
                value = getattr(self, name)(**words)
            except isthmus.Error as error:
                self.me.send("failed", {"kind": type(error).__name__, "text": str(error)})
            else:
                self.me.send("done", value)

    def take(self, comm: Any) -> None:
        if self.comm is not None:
            self.comm.destroy()
        self.comm = comm

    def enter(self, namespace: str) -> None:
        """The network namespace of that name becomes this process's."""
        with open(f"/run/netns/{namespace}") as file:
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) == 0, os.strerror(ctypes.get_errno())

    def init(self, rank: int, world: int, address: str) -> None:
        options = {key: value for key, value in self.me.options.items() if key != "address"}
        self.take(isthmus.init(rank, world, address, **options))

    def ticket(self) -> str:
        return str(self.comm.ticket())

    def joiners(self, ticket: str, wanted: int) -> int:
        until = time.monotonic() + SOON
        while (here := self.comm.joiners(ticket)) < wanted and time.monotonic() < until:
            time.sleep(0.0005)
        return int(here)

    def join(self, ticket: str, slot: int | None = None, key: str = KEY) -> int:
        self.take(isthmus.join(ticket, slot=slot, **{**self.me.options, "settings": {**self.settings(), "JOB_KEY": key}}))
        return int(self.comm.rank)

    def settings(self) -> dict[str, str]:
        return dict(self.me.options["settings"])

    def grow(self, ticket: str, n: int, slots: list[int] | None = None) -> int:
        self.take(self.comm.grow(ticket, n, slots=slots))
        return int(self.comm.size)

    def shrink(self, failed: list[int]) -> list[int]:
        rest = self.comm.shrink(failed=failed)
        self.take(rest)
        return [rest.rank, rest.size]

    def replace(self, ranks: list[int], ticket: str) -> int:
        self.take(self.comm.replace(ranks, ticket))
        return int(self.comm.rank)

    def agree(self, flags: int, failed: list[int]) -> Any:
        return self.comm.agree(flags, failed)

    def split(self) -> int:
        part = self.comm.split(self.comm.rank % 2)
        size = int(part.size)
        part.destroy()
        return size

    def drop(self) -> None:
        self.take(None)

    # ---- operations

    def members(self) -> list[int]:
        gathered = np.zeros(self.comm.size, np.int64)
        self.comm.all_gather(np.array([self.uid]), gathered)
        return [int(uid) for uid in gathered]

    def step(self, seed: int, uids: list[int], step: int, count: int) -> None:
        """One operation, whose kind and whose values its number draws; the result is checked."""
        comm, x = self.comm, summand(seed, self.uid, step, count)
        kind = random.Random(seed * 31 + step).randrange(5)
        out = x
        try:
            if kind <= 1:  # in place
                comm.all_reduce(x)
                expect(x, whole(seed, uids, step, count), f"sum {step} in place")
            elif kind == 2:
                out = np.empty_like(x)
                comm.all_reduce(x, out=out)
                expect(out, whole(seed, uids, step, count), f"sum {step}")
                expect(x, summand(seed, self.uid, step, count), f"the input of sum {step}")
            elif kind == 3:
                out = np.empty((len(uids), count), np.int64)
                comm.all_gather(x, out)
                expect(out.ravel(), np.concatenate([summand(seed, uid, step, count) for uid in uids]), f"all_gather {step}")
            else:
                after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                out = np.empty_like(x)
                work = comm.recv(out, before, 1, async_op=True)
                comm.send(x, after, 1)
                work.wait()
                expect(out, summand(seed, uids[before], step, count), f"message {step}")
        except isthmus.Error:
            self.left = [(x, x.copy()), (out, out.copy())]
            raise

    def check(self, seed: int, steps: int, most: int, descriptors: int) -> dict[str, Any]:
        """Who the members are, right sums among them, and what this process holds."""
        uids = self.members()
        chance = random.Random(seed)
        for step in range(steps):
            self.step(seed, uids, step, chance.choice([1, 100, 3000, most]))
        self.comm.barrier()
        for buffer, held in self.left:
            expect(buffer, held, "a buffer of an operation that had failed")
        self.left = []
        return {"rank": self.comm.rank, "uids": uids, "held": self.held(descriptors) if descriptors else {}}

    def work(self, seed: int, most: int) -> dict[str, Any]:
        """Operations without end, until one fails. The test may have this process abort meanwhile."""
        comm, uids = self.comm, self.members()

        def listen() -> None:
            word = self.me.hear(10 * HEARD)
            if word == "abort":
                comm.abort("the test says that a rank is stopped")
            elif word != "over":
                for one in sockets_to(word):
                    reset(one)

        listener = threading.Thread(target=listen)
        listener.start()
        self.me.send("working")
        chance, step = random.Random(seed), 0
        try:
            while True:
                self.step(seed, uids, step, chance.choice([1, 100, 3000, most]))
                step += 1
        except isthmus.Error as error:
            self.me.send("stopped", step)
            listener.join()
            return {"kind": type(error).__name__, "text": str(error), "steps": step}

    def held(self, most: int) -> dict[str, Any]:
        """What this process holds, once what is let go of later has gone: what waits for others to leave, what is left of
        processes that have ended, those that came late with a ticket. More than `most` descriptors are named."""
        until = time.monotonic() + SOON
        while True:
            stats, arenas, descriptors = isthmus.context_stats(), arenas_mapped(), os.listdir("/proc/self/fd")
            settled = not stats["leaving"] and max(arenas, stats["links"]) <= self.comm.size and len(descriptors) <= most
            if settled or time.monotonic() > until:
                break
            time.sleep(0.02)
        return {
            "descriptors": len(descriptors),
            "names": [] if settled else sorted(map(named, descriptors)),
            "threads": len(os.listdir("/proc/self/task")),
            "arenas": arenas,
            "communicators": stats["communicators"],
            "leaving": stats["leaving"],
            "links": stats["links"],
            "rings_lost": stats["rings_lost"],
        }


def worker(me: Me) -> str:
    return Worker(me).serve()
