"""Processes whose communicator changes at random, cycle by cycle: for test_membership_cycles.py, and a command for more.

    python tests/faults/membership_cycles.py --seed 17 --sets 1        # repeats what a failure has named
    python tests/faults/membership_cycles.py --cycles 100000           # writes bench/results/membership_cycles.json

A set is a few processes and some cycles. What happens in it depends on its seed alone, but for the order of what happens at
the same time. Each cycle draws one event. When it is over, all that live have one communicator with the same members, and:

- every sum is right; its summands are drawn for each epoch, operation and process, so that a frame of an earlier epoch,
  or of another operation, gives a wrong one;
- descriptors, threads, mapped arenas, communicators and memory that waits for its readers are what the members imply.

The test's side (Set) says each process what to do and compares what they say. The process's side is Worker.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

import isthmus
from isthmus import launch

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:  # as a command; pytest has it there
    sys.path.append(str(ROOT / "tests"))

from jobs import DEADLINE, HEARD, Me, Rank, Zygote  # noqa: E402
from patience import SOON, patient  # noqa: E402

CYCLES = 8  # of a set
FEWEST, MOST = 2, 7  # members, between cycles
SHAPES = ("shm", "tcp")
KEY = "0123456789abcdef0123456789abcdef"
OF_TICKETS = 8  # descriptors of a process that has made tickets: it listens for those who come with them
ANY = 1 << 20
SILENT = {"HEARTBEAT_MS": "50", "SILENCE_MS": str(int(patient(1.0) * 1000))}
EVENTS = {
    "kill": 6,
    "kill two": 3,
    "kill in shrink": 4,
    "kill in grow": 4,
    "kill in agree": 2,
    "kill in split": 2,
    "kill the newcomer": 2,
    "replace": 3,
    "stop": 5,
    "join": 3,
    "join two": 2,
    "rivals": 2,
    "wrong key": 1,
    "cut": 3,
}

# By how many members there may be more, or fewer, after it, or within it.
CHANGES = {
    "kill": (0, 1),
    "kill two": (0, 2),
    "kill in shrink": (0, 2),
    "kill in grow": (0, 1),
    "kill in agree": (0, 1),
    "kill in split": (0, 1),
    "kill the newcomer": (1, 0),
    "replace": (0, 2),
    "stop": (0, 1),
    "join": (1, 0),
    "join two": (2, 0),
    "rivals": (1, 0),
    "wrong key": (1, 0),
    "cut": (0, 1),
}


# ---- a process -------------------------------------------------------------------------------------------------------


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


# ---- the test --------------------------------------------------------------------------------------------------------


class Failed(AssertionError):
    """A cycle went wrong."""


class Set:
    """Some processes, and what has happened to them."""

    def __init__(self, zygote: Zygote, seed: int) -> None:
        self.zygote, self.seed = zygote, seed
        self.chance = random.Random(seed)
        self.shape = self.chance.choice(SHAPES)
        self.silent = self.chance.random() < 0.15
        self.members: list[Rank] = []  # by their rank in the communicator
        self.stopped: list[Rank] = []
        self.all: list[Rank] = []
        self.flight: list[str] = []
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}  # that the events of a kind have taken together
        # Of each process, when it was first looked at: descriptors that are not for its peers, and threads.
        self.own: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        self.ticketed: set[int] = set()
        self.makers: dict[str, int] = {}  # of tickets
        self.island: dict[int, str | None] = {}
        self.began = time.monotonic()

    # ---- what the events are made of

    def note(self, text: str) -> None:
        self.flight.append(f"{time.monotonic() - self.began:8.3f}  {text}")

    def draw(self) -> int:
        return self.chance.randrange(1 << 30)

    def start(self, **more: str) -> Rank:
        one = Rank(self.zygote, len(self.all))
        self.all.append(one)
        island = None if self.shape == "shm" else "ab"[one.rank % 2 if one.rank < 2 else self.chance.randrange(2)]
        self.island[one.rank] = island
        settings = {"JOB_KEY": KEY, **(SILENT if self.silent else {}), **more}
        options = {"timeout": DEADLINE, "island": island, "bridge": "tcp" if self.shape == "tcp" else None}
        one.channel.send_bytes(cloudpickle.dumps((worker, Me(one.rank, 0, {**options, "settings": settings}))))
        return one

    def say(self, ranks: Sequence[Rank], name: str, /, **words: Any) -> None:
        self.note(f"{name} {words or ''} -> {[one.rank for one in ranks]}")
        for one in ranks:
            one.tell((name, words))

    def hear(self, one: Rank, kinds: tuple[str, ...] = ("done",)) -> Any:
        kind, value = one.next()
        self.note(f"process {one.rank}: {kind} {value}")
        if kind not in kinds:
            raise Failed(f"process {one.rank} said '{kind}' and not {' or '.join(kinds)}: {value}")
        return (kind, value) if len(kinds) > 1 else value

    def all_do(self, ranks: Sequence[Rank], name: str, /, **words: Any) -> list[Any]:
        self.say(ranks, name, **words)
        return [self.hear(one) for one in ranks]

    def all_try(self, ranks: Sequence[Rank], name: str, /, **words: Any) -> list[tuple[str, Any]]:
        self.say(ranks, name, **words)
        return [self.hear(one, ("done", "failed")) for one in ranks]

    def end(self, one: Rank) -> None:
        """A process that is not needed any more ends well."""
        self.say([one], "end")
        self.hear(one, ("result",))
        assert one.wait() == 0

    def strike(self, victims: Sequence[Rank], number: int = signal.SIGKILL, within: float = 0.0) -> None:
        if within:
            time.sleep(self.chance.uniform(0, within))  # somewhere in what they do: where that is decides nothing
        for one in victims:
            self.note(f"{signal.Signals(number).name} to process {one.rank}")
            one.signal(number)

    def pick(self, count: int) -> list[Rank]:
        """Members to be lost, the lowest more often than the others."""
        if self.chance.random() < 0.35:
            return self.members[:count]
        return self.chance.sample(self.members, count)

    def without(self, victims: Sequence[Rank]) -> list[Rank]:
        return [one for one in self.members if one not in victims]

    def begin_work(self) -> None:
        most = self.chance.choice([20_000, 20_000, 400_000])
        self.say(self.members, "work", seed=self.draw(), most=most)
        for one in self.members:
            self.hear(one, ("working",))

    def end_work(self, ranks: Sequence[Rank], word: str = "over") -> list[Any]:
        for one in ranks:
            one.tell(word)
        for one in ranks:
            self.hear(one, ("stopped",))
        return [self.hear(one) for one in ranks]

    def lose(self, victims: Sequence[Rank], at_work: bool) -> list[Rank]:
        """Kills them; those who are left know it. Returns those."""
        left = self.without(victims)
        self.begin_work()
        self.strike(victims, within=0.01 if at_work else 0)
        for told in self.end_work(left):
            if told["kind"] != "PeerLostError":
                raise Failed(f"an operation of those who are left ended in {told}")
        return left

    def shrink(self, left: list[Rank], failed: Sequence[Rank] = ()) -> None:
        named = [self.members.index(one) for one in failed]
        got = self.all_do(left, "shrink", failed=named)
        if got != [[rank, len(left)] for rank in range(len(left))]:
            raise Failed(f"(rank, size) after the shrink: {got}")
        self.members = left

    def ticket(self) -> str:
        maker = self.chance.choice(self.members)
        self.ticketed.add(maker.rank)
        (text,) = self.all_do([maker], "ticket")
        self.makers[text] = maker.rank
        return str(text)

    def grow_by(self, come: Sequence[Rank], ticket: str, slots: list[int] | None = None) -> None:
        """These have called join with the ticket, and all of them are to get in."""
        self.say(self.members, "grow", ticket=ticket, n=len(come), slots=slots)
        for one in self.members:
            self.hear(one)
        self.seat(come, slots)

    def seat(self, come: Sequence[Rank], slots: list[int] | None) -> None:
        world = len(self.members) + len(come)
        places = {}
        for one in come:
            places[self.hear(one)] = one
        wanted = sorted(slots) if slots else list(range(len(self.members), world))
        if sorted(places) != wanted:
            raise Failed(f"the newcomers are ranks {sorted(places)} and not {wanted}")
        old = iter(self.members)
        self.members = [places.get(rank) or next(old) for rank in range(world)]

    # ---- events

    def kill(self, count: int = 1) -> None:
        left = self.lose(self.pick(count), self.chance.random() < 0.7)
        self.shrink(left)

    def kill_two(self) -> None:
        self.kill(2)

    def kill_in_shrink(self) -> None:
        first, second = self.chance.sample(self.members, 2)
        left = [one for one in self.lose([first], True) if one is not second]
        self.say([*left, second], "shrink", failed=[])
        self.strike([second], within=0.006)
        got = [self.hear(one) for one in left]
        # Where it was killed after the last word, it is a member, and lost in the new communicator.
        sizes = {size for _, size in got}
        if sizes == {len(left) + 1}:
            self.members = self.without([first])
            self.after_loss(left)
        elif got == [[rank, len(left)] for rank in range(len(left))]:
            self.members = [one for one in self.members if one in left]
        else:
            raise Failed(f"(rank, size) after the shrink: {got}")

    def after_loss(self, left: list[Rank]) -> None:
        """A member has been killed already, and the others go on without it."""
        left = [one for one in self.members if one in left]
        self.say(left, "work", seed=self.draw(), most=5000)
        for one in left:
            kind, value = self.hear(one, ("working", "failed"))
            if kind == "working":
                one.tell("over")
                self.hear(one, ("stopped",))
                value = self.hear(one)
            if value["kind"] != "PeerLostError":
                raise Failed(f"an operation of those who are left ended in {value}")
        self.shrink(left)

    def alike(self, ranks: Sequence[Rank], what: str) -> bool:
        """Whether what these were told has succeeded: on all, or on none."""
        got = [self.hear(one, ("done", "failed")) for one in ranks]
        if len({kind for kind, _ in got}) != 1:
            raise Failed(f"{what} has succeeded on some and failed on others: {got}")
        return got[0][0] == "done"

    def kill_in_grow(self) -> None:
        ticket, (victim,) = self.ticket(), self.pick(1)
        new = self.start()
        self.say([new], "join", ticket=ticket)
        self.say(self.members, "grow", ticket=ticket, n=1)
        self.strike([victim], within=0.03)
        left = self.without([victim])
        if self.alike(left, "grow"):
            self.hear(new)
            self.members = [*self.members, new]
            return self.after_loss([*left, new])
        waits = self.still_waits(new, ticket, left)
        self.after_loss(left)
        if waits:
            return self.grow_by([new], ticket)
        self.hear(new, ("failed",))
        self.end(new)

    def still_waits(self, new: Rank, ticket: str, left: Sequence[Rank]) -> bool:
        """Whether it waits, with a ticket that a grow has not used and whose maker lives. Else it is told."""
        (maker,) = [one for one in self.members if one.rank == self.makers[ticket]]
        until = time.monotonic() + HEARD
        while time.monotonic() < until and not new.channel.poll(0.001):
            if maker in left and self.all_do([maker], "joiners", ticket=ticket, wanted=0) == [1]:
                return True
        return False

    def kill_in_agree(self) -> None:
        (victim,) = self.pick(1)
        flags = [self.draw() for _ in self.members]
        for one, mine in zip(self.members, flags, strict=True):
            self.say([one], "agree", flags=mine, failed=[])
        self.strike([victim], within=0.003)
        left = self.without([victim])
        got = [self.hear(one) for one in left]
        rank = self.members.index(victim)
        wanted = []
        for out in ([], [rank]):
            mine = [f for r, f in enumerate(flags) if r not in out]
            wanted.append((int(np.bitwise_and.reduce(mine)), out))
        if any(one != got[0] for one in got) or got[0] not in wanted:
            raise Failed(f"agree gave {got}, not one of {wanted} on all")
        self.after_loss(left)

    def kill_in_split(self) -> None:
        (victim,) = self.pick(1)
        self.say(self.members, "split")
        self.strike([victim], within=0.006)
        left = self.without([victim])
        for one in left:
            self.hear(one, ("done", "failed"))
        self.after_loss(left)

    def kill_the_newcomer(self) -> None:
        ticket, new = self.ticket(), self.start()
        self.say([new], "join", ticket=ticket)
        self.say(self.members, "grow", ticket=ticket, n=1)
        self.strike([new], within=0.03)
        new.wait()
        spare = self.start()
        self.say([spare], "join", ticket=ticket)
        if self.alike(self.members, "grow"):
            kind, value = self.hear(spare, ("done", "failed"))
            self.members = [*self.members, spare if kind == "done" else new]
            if kind != "done":
                self.end(spare)
                self.after_loss(self.members[:-1])
        else:  # the old communicator works, and the spare one was not let in
            kind, value = self.hear(spare, ("done", "failed"))
            if kind == "done":
                raise Failed(f"a newcomer is in a communicator that no member has: {value}")
            self.end(spare)

    def replace(self) -> None:
        victims = self.pick(self.chance.choice([1, 1, 2]))
        ranks = sorted(self.members.index(one) for one in victims)
        left = self.lose(victims, True)
        maker = self.chance.choice(left)
        self.ticketed.add(maker.rank)
        (ticket,) = self.all_do([maker], "ticket")
        come = [self.start() for _ in victims]
        self.say(come, "join", ticket=ticket)
        got = self.all_do(left, "replace", ranks=ranks, ticket=ticket)
        if got != [self.members.index(one) for one in left]:
            raise Failed(f"those who are left have other ranks: {got}")
        self.members = left
        self.seat(come, ranks)

    def stop(self) -> None:
        """One is stopped, and the others go on without it. It goes on before, while or after they leave it out."""
        (victim,) = self.pick(1)
        left = self.without([victim])
        self.begin_work()
        self.strike([victim], signal.SIGSTOP, within=0.01)
        if not self.silent:
            named = self.chance.choice(left)
            named.tell("abort")
            self.note(f"process {named.rank} aborts")
            for one in left:
                if one is not named:
                    one.tell("over")
            for one in left:
                self.hear(one, ("stopped",))
                self.hear(one)
        else:
            for told in self.end_work(left):
                if told["kind"] != "PeerLostError":
                    raise Failed(f"an operation of those who are left ended in {told}")
        wakes_early = self.chance.random() < 0.3
        self.say(left, "shrink", failed=[self.members.index(victim)])
        if wakes_early:
            self.strike([victim], signal.SIGCONT, within=0.003)
        got = [self.hear(one) for one in left]
        if got != [[rank, len(left)] for rank in range(len(left))]:
            raise Failed(f"(rank, size) after the shrink: {got}")
        self.members = left
        self.verify(settled=False)  # the memory of the old one is used again, where it can be
        if not wakes_early:
            self.strike([victim], signal.SIGCONT)
        victim.tell("over")
        self.hear(victim, ("stopped",))
        self.hear(victim)
        ((kind, value),) = self.all_try([victim], "shrink", failed=[])
        if kind == "done" or value["kind"] not in ("AbortedError", "PeerLostError"):
            raise Failed(f"a process that was stopped was not told that it is out: {value}")
        self.come_back(victim)

    def come_back(self, out: Rank) -> None:
        """A process that was left out, and knows it, comes in again, or ends."""
        self.all_do([out], "drop")
        if self.chance.random() < 0.5:
            return self.end(out)
        ticket = self.ticket()
        self.say([out], "join", ticket=ticket)
        self.grow_by([out], ticket)

    def cut(self) -> None:
        """The data connections of two processes are reset. Both live, and one of the two is out."""
        one = self.chance.choice(self.members)
        others = [other for other in self.members if self.island[other.rank] != self.island[one.rank]]
        if not others:
            return self.kill()
        other = self.chance.choice(others)
        self.begin_work()
        time.sleep(self.chance.uniform(0, 0.01))
        self.note(f"process {one.rank} cuts its connections to process {other.rank}")
        one.tell(other.pid)
        for each in self.members:
            if each is not one:
                each.tell("over")
        for each in self.members:
            self.hear(each, ("stopped",))
        for each in self.members:
            told = self.hear(each)
            if told["kind"] != "PeerLostError":
                raise Failed(f"an operation ended in {told}")
        got = self.all_try(self.members, "shrink", failed=[])
        left = [each for each, (kind, _) in zip(self.members, got, strict=True) if kind == "done"]
        without = [each for each in self.members if each not in left]
        if len(without) > 1:
            said = "; ".join(f"{each.rank}: {told}" for each, told in zip(self.members, got, strict=True))
            raise Failed(f"more than one is out behind a cut: {said}")
        (out,) = without or [None]
        if out not in (one, other):
            raise Failed(f"after a cut between processes {one.rank} and {other.rank} not one of them is out: {got}")
        value = got[self.members.index(out)][1]
        if value["kind"] != "AbortedError":
            raise Failed(f"process {out.rank} was not told that it is out: {value}")
        if [value for kind, value in got if kind == "done"] != [[rank, len(left)] for rank in range(len(left))]:
            raise Failed(f"(rank, size) after the shrink: {got}")
        self.members = left
        self.come_back(out)

    def join(self, count: int = 1) -> None:
        ticket = self.ticket()
        come = [self.start() for _ in range(count)]
        slots = None
        if self.chance.random() < 0.5:
            slots = sorted(self.chance.sample(range(len(self.members) + count), count))
        self.say(come, "join", ticket=ticket)
        self.grow_by(come, ticket, slots)

    def join_two(self) -> None:
        self.join(2)

    def rivals(self) -> None:
        """Two come for one place."""
        ticket = self.ticket()
        place = self.chance.randrange(len(self.members) + 1)
        come = [self.start(), self.start()]
        self.say(come, "join", ticket=ticket, slot=place)
        self.say(self.members, "grow", ticket=ticket, n=1, slots=[place])
        for one in self.members:
            self.hear(one)
        got = [self.hear(one, ("done", "failed")) for one in come]
        if sorted(kind for kind, _ in got) != ["done", "failed"]:
            raise Failed(f"two came for one place: {got}")
        winner = [kind for kind, _ in got].index("done")
        refused = got[1 - winner][1]
        if refused["kind"] not in ("ArgumentError", "PeerLostError"):
            raise Failed(f"who came second was told {refused}")
        self.end(come[1 - winner])
        self.members.insert(place, come[winner])

    def wrong_key(self) -> None:
        ticket, stranger = self.ticket(), self.start()
        ((kind, value),) = self.all_try([stranger], "join", ticket=ticket, key=KEY[::-1])
        if kind != "failed" or value["kind"] != "AuthError":
            raise Failed(f"a process with another key was told {value}")
        self.end(stranger)
        new = self.start()
        self.say([new], "join", ticket=ticket)
        self.grow_by([new], ticket)

    # ---- a cycle

    def verify(self, settled: bool = True) -> None:
        """`settled`: nobody is stopped or left out who still has a communicator with the members."""
        most, seed = self.chance.choice([5000, 5000, 5000, 200_000]), self.draw()
        for one in self.members:
            bound = self.bound(one) if settled else 0
            self.say([one], "check", seed=seed, steps=4, most=most, descriptors=bound)
        wanted = [one.rank for one in self.members]
        for rank, one in enumerate(self.members):
            told = self.hear(one)
            if told["rank"] != rank or told["uids"] != wanted:
                found = f"rank {told['rank']} among {told['uids']}"
                raise Failed(f"process {one.rank} is {found}, not {rank} among {wanted}")
            if settled:
                self.compare(one, told["held"])

    def of_peers(self, one: Rank) -> int:
        """A peer is a control connection and its pidfd, and in another island a data connection."""
        crossing = sum(self.island[other.rank] != self.island[one.rank] for other in self.members)
        return 2 * (len(self.members) - 1) + crossing

    def bound(self, one: Rank) -> int:
        if one.rank not in self.own:
            return ANY
        return self.own[one.rank] + self.of_peers(one) + (OF_TICKETS if one.rank in self.ticketed else 0)

    def compare(self, one: Rank, held: dict[str, Any]) -> None:
        """What a process holds may depend on who the members are now, and on nothing that was."""
        wrong = [name for name in ("leaving", "rings_lost") if held[name]]
        wrong += ["communicators"] * (held["communicators"] != 1)
        wrong += ["arenas"] * (held["arenas"] > len(self.members))
        wrong += ["links"] * (held["links"] > len(self.members))
        wrong += ["descriptors"] * (held["descriptors"] > self.bound(one))
        self.own.setdefault(one.rank, held["descriptors"] - self.of_peers(one))
        first = self.threads.setdefault(one.rank, held["threads"])
        wrong += ["threads"] * (held["threads"] > first + 1 + (one.rank in self.ticketed))
        if wrong:
            raise Failed(f"process {one.rank} among {len(self.members)} holds too many {', '.join(wrong)}: {held}")

    def choose(self) -> str:
        """An event after which there are neither too few members nor too many."""
        size = len(self.members)
        names = list(EVENTS)
        while True:
            (name,) = self.chance.choices(names, [EVENTS[n] for n in names])
            more, fewer = CHANGES[name]
            if size + more <= MOST and size - fewer >= FEWEST and (name != "cut" or self.shape == "tcp"):
                return name

    def run(self, cycles: int = CYCLES) -> None:
        try:
            world = self.chance.randint(4, 6)
            self.flight.append(f"set of seed {self.seed}: {world} processes over {self.shape}, silence {self.silent}")
            first = [self.start() for _ in range(world)]
            address = f"127.0.0.1:{launch.free_port()}"
            for rank, one in enumerate(first):
                self.say([one], "init", rank=rank, world=world, address=address)
            for one in first:
                self.hear(one)
            self.members = first
            self.verify()
            for number in range(cycles):
                name = self.choose()
                self.note(f"cycle {number}: {name}")
                begun = time.monotonic()
                getattr(self, name.replace(" ", "_"))()
                self.verify()
                self.counts[name] += 1
                self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - begun
            for one in list(self.members):
                one.tell(("end", {}))
            for one in self.members:
                self.hear(one, ("result",))
        except AssertionError as error:
            command = f"python tests/faults/membership_cycles.py --seed {self.seed} --sets 1"
            raise Failed(f"{error}\nto repeat: {command}\n" + "\n".join(self.flight[-120:])) from error
        finally:
            for one in self.all:
                one.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first set; the next has the next number")
    parser.add_argument("--sets", type=int)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sets = args.sets or -(-args.cycles // CYCLES)
    zygote, counts, failed = Zygote(), Counter[str](), 0
    lasted: dict[str, float] = {}
    begin = time.monotonic()
    try:
        for seed in range(args.seed, args.seed + sets):
            one = Set(zygote, seed)
            try:
                one.run()
            except AssertionError as error:
                failed += 1
                print(error, flush=True)
            counts += one.counts
            lasted = {name: lasted.get(name, 0) + one.seconds.get(name, 0) for name in EVENTS}
    finally:
        zygote.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(u.ru_utime + u.ru_stime for u in used)
    cycles = sum(counts.values())
    document = {
        "command": f"python tests/faults/membership_cycles.py --seed {args.seed} --sets {sets}",
        "date": time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime()),
        "machine": {"processors": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()},
        "sets": sets,
        "failed": failed,
        "cycles": cycles,
        "events": dict(sorted(counts.items())),
        "mean_seconds": {name: round(lasted[name] / count, 3) for name, count in sorted(counts.items())},
        "seconds": round(time.monotonic() - begin, 1),
        "processor_seconds_per_cycle": round(seconds / max(1, cycles), 3),
    }
    print(json.dumps(document, indent=1))
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    import membership_cycles  # the processes import it by this name

    sys.exit(membership_cycles.main())
