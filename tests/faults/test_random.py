"""Jobs with a random fault at a random time each: nothing hangs, is silently wrong, or blames a bystander."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from jobs import DEADLINE, RARELY, SHAPES, Me, Zygote, all_say, job
from patience import patient

PART, PARTS, MORE = 25, 8, 40
SEED = 20240607
FAULTS = ("none", "kill", "kill", "kill", "kill with children", "stop", "abort", "mismatch", "absent", "destroy")
WORLD = 3
SHORT = patient(3)  # the deadline where it has to pass: of every operation of a job in which a rank is stopped


class Cycle(NamedTuple):
    number: int
    shape: str
    fault: str
    victim: int
    seed: int
    delay: float  # of the test's strike

    def __str__(self) -> str:
        return f"cycle {self.number}: {self.fault} on rank {self.victim} over {self.shape}, seed {self.seed}"

    @property
    def strikes(self) -> bool:
        """The test does, and not the rank itself."""
        return self.fault.startswith("kill") or self.fault == "stop"


def cycles(first: int) -> list[Cycle]:
    """Those of one part: what a cycle is depends on its number alone."""
    chance = random.Random(SEED)
    drawn = [
        Cycle(
            number,
            chance.choice(SHAPES),
            chance.choice(FAULTS),
            chance.randrange(WORLD),
            chance.randrange(1 << 30),
            chance.uniform(0, 0.03),
        )
        for number in range(first + PART)
    ]
    return drawn[first:]


def body(me: Me, cycle: Cycle) -> Any:
    """The same random operations on all ranks, each result checked, until the fault strikes (or 40 are done)."""
    fault, plan = cycle.fault, random.Random(cycle.seed)
    comm = me.init()
    comm.set_timeout(SHORT if fault == "stop" else DEADLINE)
    mine = me.rank == cycle.victim
    children = []
    if mine and fault == "kill with children":
        children.append(os.fork())
        if children[-1] == 0:
            time.sleep(patient(120))
            os._exit(0)
    me.send("ready", children)
    at = plan.randrange(5, 35)

    def operations() -> None:
        step = 0
        while step < 40 or cycle.strikes:  # until the test strikes there is always a next operation
            n = plan.choice([1, 100, 5000, 100_000])
            kind = plan.randrange(4)
            if step == at and fault == "mismatch":
                kind = 0  # two collectives that differ; one against a receive could only end at a deadline
            if step == at and fault == "absent":
                comm.barrier()  # so that the deadline of the next operation counts for nothing else
                comm.set_timeout(SHORT)
            if mine and step == at and fault == "abort":
                comm.abort("random fault")
            elif mine and step == at and fault == "destroy":
                comm.destroy()
                return
            elif mine and step == at and fault == "absent":
                me.hear()
            elif mine and step == at and fault == "mismatch":
                comm.all_reduce(np.ones(n + 1, np.int16), "max")
            x = np.full(n, me.rank + step, np.int64)
            if kind == 0:
                comm.all_reduce(x)
                assert (x == sum(r + step for r in range(me.world))).all()
            elif kind == 1:
                out = comm.all_gather(x)
                assert (np.asarray(out).reshape(me.world, n) == np.arange(me.world)[:, None] + step).all()
            elif kind == 2:
                comm.broadcast(x, step % me.world)
                assert (x == step % me.world + step).all()
            else:
                y = np.empty_like(x)
                work = comm.recv(y, (me.rank - 1) % me.world, 1, async_op=True)
                comm.send(x, (me.rank + 1) % me.world, 1)
                work.wait()
                assert (y == (me.rank - 1) % me.world + step).all()
            step += 1

    if fault == "none" or (mine and fault == "destroy"):
        operations()
        return None
    return me.caught(operations)


def play(zygote: Zygote, cycle: Cycle, noticed: list[float]) -> None:
    """Runs the job. `noticed` gets how long after a kill each of the others said so."""
    fault, victim = cycle.fault, cycle.victim
    children: list[int] = []
    try:
        # A deadline asks the ranks on its way to the victim. None is silent for several heartbeats where these are rare.
        settings = RARELY if fault in ("stop", "absent", "mismatch") else None
        with job(zygote, WORLD, lambda me: body(me, cycle), cycle.shape, settings=settings) as ranks:
            children = all_say(ranks, "ready")[victim]
            since = 0.0
            if cycle.strikes:
                time.sleep(cycle.delay)
                since = ranks[victim].signal(signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
            others = [rank.result() for rank in ranks if rank.rank != victim]
            if fault == "absent":
                ranks[victim].tell("go")
            failures = others if cycle.strikes else [*others, ranks[victim].result()]
            assert len([f for f in failures if f]) == (
                0 if fault == "none" else WORLD - (cycle.strikes or fault == "destroy")
            ), failures
            for failure in filter(None, failures):
                kind, text = failure["kind"], failure["text"]
                if fault.startswith("kill"):
                    noticed.append(failure["at"] - since)
                expected = {
                    "stop": ("TimeoutError", f"rank {victim}"),
                    "absent": ("TimeoutError", f"rank {victim}"),
                    "abort": ("AbortedError", "random fault"),
                    "mismatch": ("MismatchError", "int16"),
                }.get(fault, ("PeerLostError", f"rank {victim}"))
                assert kind == expected[0] and expected[1] in text, failure
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def run(zygote: Zygote, first: int, record: Callable[[str, object], None]) -> None:
    wrong: list[str] = []
    noticed: list[float] = []
    for cycle in cycles(first):
        try:
            play(zygote, cycle, noticed)
        except AssertionError as error:  # all of them are told at the end
            wrong.append(f"{cycle}: {error}")
    assert not wrong, "\n".join(wrong)
    record("noticed", noticed)


@pytest.mark.product(8)
@pytest.mark.parametrize("first", range(0, PART * PARTS, PART))
def test_whatever_fails_is_told_to_all_who_are_left(
    zygote: Zygote, first: int, record_property: Callable[[str, object], None]
) -> None:
    run(zygote, first, record_property)


@pytest.mark.everything
@pytest.mark.parametrize("first", range(PART * PARTS, PART * (PARTS + MORE), PART))
def test_the_same_a_thousand_times_more(zygote: Zygote, first: int, record_property: Callable[[str, object], None]) -> None:
    run(zygote, first, record_property)
