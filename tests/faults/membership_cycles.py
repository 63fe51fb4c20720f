"""Processes whose communicator changes at random, cycle by cycle: for test_membership_cycles.py, and a command for more.

    python tests/faults/membership_cycles.py --seed 17 --sets 1        # repeats what a failure has named
    python tests/faults/membership_cycles.py --cycles 100000 --beside 10 --out bench/results/membership_cycles.json

A set is a few processes and some cycles. What happens in it depends on its seed alone, but for the order of what happens at
the same time. Each cycle draws one event. When it is over, all that live have one communicator with the same members, and:

- every sum is right; its summands are drawn for each epoch, operation and process, so that a frame of an earlier epoch,
  or of another operation, gives a wrong one;
- descriptors, threads, mapped arenas, communicators and memory that waits for its readers are what the members imply.

The test's side (Set) says each process what to do and compares what they say. The process's side is in membership_worker.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from isthmus import launch

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:  # as a command; pytest has it there
    sys.path.append(str(ROOT / "tests"))

from jobs import DEADLINE, HEARD, Me, Rank, Zygote  # noqa: E402
from membership_worker import KEY, worker  # noqa: E402
from patience import patient  # noqa: E402

CYCLES = 8  # of a set
FEWEST, MOST = 2, 7  # members, between cycles
SHAPES = ("shm", "tcp")
OF_TICKETS = 8  # descriptors of a process that has made tickets: it listens for those who come with them
ANY = 1 << 20
SILENT = {"HEARTBEAT_MS": "100", "SILENCE_MS": str(int(patient(4) * 1000))}
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


def run_sets(seeds: range) -> tuple[int, Counter[str], dict[str, float]]:
    """How many failed, and of each kind of event how many there were and how long they took together."""
    zygote, counts, failed = Zygote(), Counter[str](), 0
    lasted: dict[str, float] = {}
    try:
        for seed in seeds:
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
    return failed, counts, lasted


def run_beside(seeds: range, beside: int) -> tuple[int, Counter[str], dict[str, float]]:
    """The same by several commands like this one, side by side, each with its share of the sets."""
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for first in range(beside):
            share = seeds[first * len(seeds) // beside : (first + 1) * len(seeds) // beside]
            out = Path(folder) / str(first)
            own = [sys.executable, __file__, "--seed", str(share.start), "--sets", str(len(share)), "--out", str(out)]
            if share:
                commands.append((subprocess.Popen(own, stdout=subprocess.PIPE, text=True), out))
        failed, counts, lasted = 0, Counter[str](), Counter[str]()
        for command, out in commands:
            said, _ = command.communicate()
            if command.returncode != 0:
                print(said, flush=True)
            found = json.loads(out.read_text())
            failed += found["failed"]
            counts += Counter(found["events"])
            lasted.update({name: count * found["mean_seconds"][name] for name, count in found["events"].items()})
    return failed, counts, dict(lasted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first set; the next has the next number")
    parser.add_argument("--sets", type=int)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=1, help="so many sets at a time: most of a set is waiting")
    parser.add_argument("--out", type=Path, help="a file for what is printed at the end")
    args = parser.parse_args()
    sets = args.sets or -(-args.cycles // CYCLES)
    seeds = range(args.seed, args.seed + sets)
    begin = time.monotonic()
    failed, counts, lasted = run_sets(seeds) if args.beside == 1 else run_beside(seeds, args.beside)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(u.ru_utime + u.ru_stime for u in used)
    cycles = sum(counts.values())
    document = {
        "command": f"python tests/faults/membership_cycles.py --seed {args.seed} --sets {sets} --beside {args.beside}",
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
