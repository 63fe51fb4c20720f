"""How long a change of ranks takes: grow, shrink, replace, the error before, revoke; writes bench/results/membership.json.

    .venv/bin/python bench/membership.py            # a minute or two
    .venv/bin/python bench/membership.py --beside   # beside torchft, see membership_beside.py; writes membership_beside.json

All ranks are processes of this machine, in shared memory or over TCP between two islands (loopback). One clock
(CLOCK_MONOTONIC) serves all. A sum that is wrong ends the run.

grow     Three ranks, and a process that has come with the ticket and waits. From the first member's call until the newcomer
         has 4 MiB of state, by a broadcast on the new communicator. `made` is the part until all four have it:

    members    call grow |-------- made --------| broadcast 4 MiB |
    newcomer   waits     |-------- made --------|    receives     | the figure ends

shrink   Eight ranks, of which one gets SIGKILL while they run collectives without end:

    victim     SIGKILL
    others        |<---- error ---->| shrink |<- first operation ->|
                                    |<----------- shrink --------->|

         `error` is the time until an other rank has its error, `shrink` until the end of the first all_reduce of the seven.
         `error 64` and `shrink 64` are those of 64 ranks, a third as often.

replace  The same, with a process that has come with a ticket before and waits: from the last call of replace until all eight
         have ended the first all_reduce of the new communicator. `replace 64` is that of 64 ranks.

revoke   Eight ranks that run collectives without end, one of which calls revoke: until the last of the others has its error.

look     What `isthmus.elastic` adds to a step of three ranks while the job is not full: they ask whether somebody has come.

The figures of one change are those of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "faults"), str(ROOT / "tests")]

import isthmus  # noqa: E402
import membership_beside  # noqa: E402
from circumstances import circumstances  # noqa: E402
from jobs import DEADLINE, SHAPES, Me, Rank, Zygote, all_say, forever, job, results  # noqa: E402

MEMBERS, WORLD, MANY = 3, 8, 64
STATE = 1 << 20  # float32: 4 MiB
TARGETS = {"grow": 150.0, "error": 25.0, "shrink": 50.0, "replace": 50.0, "revoke": 100.0,
           f"shrink {MANY}": 200.0, f"replace {MANY}": 200.0}  # ms, p99  # fmt: skip


def checked(comm: isthmus.Comm, expected: float) -> None:
    x = np.full(1, comm.rank, np.float64)
    comm.all_reduce(x)
    if x[0] != expected:
        raise SystemExit(f"membership: the sum is {x[0]}, not {expected}")


def awaited_ticket(me: Me, comm: isthmus.Comm) -> str:
    """A ticket of rank 0, on all ranks, once a newcomer has come with it."""
    if me.rank == 0:
        me.send("ticket", ticket := comm.ticket())
        while comm.joiners(ticket) < 1:
            time.sleep(0.0005)
        ready = np.frombuffer(ticket.encode(), np.uint8).copy()
    else:
        ready = np.empty(len("isthmus-") + 96, np.uint8)
    comm.broadcast(ready, 0)
    return ready.tobytes().decode()


@contextmanager
def arriving(zygote: Zygote, shape: str, number: int, work: Callable[[Me], Any], ticket: str) -> Iterator[Rank]:
    """A process that joins with the ticket."""
    one = Rank(zygote, number)
    try:
        options = {"timeout": DEADLINE, "bridge": "tcp" if shape == "tcp" else None}
        options["island"] = "b" if shape == "tcp" else None
        one.channel.send_bytes(cloudpickle.dumps((work, Me(number, number + 1, options))))
        one.tell(ticket)
        yield one
    finally:
        one.close()


def member(me: Me, times: int) -> list[tuple[float, float]]:
    """Grows `times` times from one communicator, each time by another newcomer; (when it called, when it was made)."""
    comm = me.init()
    state = np.arange(STATE, dtype=np.float32)
    found = []
    for _ in range(times):
        ticket = awaited_ticket(me, comm)
        comm.barrier()
        begin = time.monotonic()
        grown = comm.grow(ticket)
        made = time.monotonic()
        grown.broadcast(state, 0)
        checked(grown, sum(range(MEMBERS + 1)))
        grown.destroy()
        found.append((begin, made))
    return found


def newcomer(me: Me) -> tuple[float, float]:
    """When it had the communicator, and when it had the state."""
    comm = isthmus.join(me.hear(), **me.options)
    made = time.monotonic()
    state = np.zeros(STATE, np.float32)
    comm.broadcast(state, 0)
    done = time.monotonic()
    if state[-1] != STATE - 1:
        raise SystemExit("membership: the state is not that of the members")
    checked(comm, sum(range(MEMBERS + 1)))
    return made, done


def grow(zygote: Zygote, shape: str, times: int) -> dict[str, list[float]]:
    found: list[tuple[float, float]] = []
    with job(zygote, MEMBERS, lambda me: member(me, times), shape) as ranks:
        for _ in range(times):
            with arriving(zygote, shape, MEMBERS, newcomer, ranks[0].expect("ticket")) as one:
                found.append(one.result())
        members = results(ranks)
    out: dict[str, list[float]] = {"grow": [], "made": []}
    for number, (made, done) in enumerate(found):
        begin = min(calls[number][0] for calls in members)
        out["made"].append(max(made, *(calls[number][1] for calls in members)) - begin)
        out["grow"].append(done - begin)
    return out


def survivor(me: Me) -> tuple[float, float, float]:
    comm = me.init()
    me.send("ready")
    lost = me.caught(lambda: forever(comm))
    if lost["kind"] != "PeerLostError":
        raise SystemExit(f"membership: {lost['text']}")
    begin = time.monotonic()
    rest = comm.shrink()
    checked(rest, sum(range(rest.size)))
    ended = time.monotonic()
    me.send("ended")
    me.hear()  # a job goes on; 64 processes that end would take the processors from those that are still in the sum
    return lost["at"], begin, ended


def shrink(zygote: Zygote, shape: str, times: int, chance: random.Random, world: int = WORLD) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {"error": [], "shrink": []}
    for _ in range(times):
        with job(zygote, world, survivor, shape) as ranks:
            all_say(ranks, "ready")
            time.sleep(chance.uniform(0.02, 0.1))
            victim = chance.randrange(world)
            since = ranks[victim].signal(signal.SIGKILL)
            others = [rank for rank in ranks if rank.rank != victim]
            all_say(others, "ended")
            for rank in others:
                rank.tell("go")
            ended = results(others)
        out["error"].append(max(at for at, _, _ in ended) - since)
        out["shrink"].append(max(done for _, _, done in ended) - max(begin for _, begin, _ in ended))
    return out


def replacer(me: Me) -> tuple[float, float]:
    """When it called replace, and when it had ended the first all_reduce."""
    comm = me.init()
    ticket = awaited_ticket(me, comm)
    me.send("ready")
    lost = me.caught(lambda: forever(comm))
    if lost["kind"] != "PeerLostError":
        raise SystemExit(f"membership: {lost['text']}")
    begin = time.monotonic()
    whole = comm.replace(lost["ranks"], ticket)
    checked(whole, sum(range(whole.size)))
    ended = time.monotonic()
    me.send("ended")
    me.hear()
    return begin, ended


def replacement(me: Me) -> float:
    """When it had ended the first all_reduce."""
    comm = isthmus.join(me.hear(), **me.options)
    checked(comm, sum(range(comm.size)))
    ended = time.monotonic()
    me.send("ended")
    me.hear()
    return ended


def replace(zygote: Zygote, shape: str, times: int, chance: random.Random, world: int = WORLD) -> dict[str, list[float]]:
    out = []
    for _ in range(times):
        with (
            job(zygote, world, replacer, shape) as ranks,
            arriving(zygote, shape, world, replacement, ranks[0].expect("ticket")) as one,
        ):
            all_say(ranks, "ready")
            time.sleep(chance.uniform(0.02, 0.1))
            victim = chance.randrange(1, world)  # rank 0 has made the ticket
            ranks[victim].signal(signal.SIGKILL)
            others = [rank for rank in ranks if rank.rank != victim]
            all_say([*others, one], "ended")
            for rank in (*others, one):
                rank.tell("go")
            ended = results(others)
            out.append(max(one.result(), *(done for _, done in ended)) - max(begin for begin, _ in ended))
    return {"replace": out}


def revoked(me: Me, rank: int, after: float) -> float:
    """When this rank calls revoke, or has the error of it."""
    comm = me.init()
    comm.barrier()
    begin = time.monotonic()
    x = np.ones(200_000, np.float32)
    while True:
        if me.rank == rank and time.monotonic() - begin > after:
            at = time.monotonic()
            comm.revoke("measured")
            return at
        try:
            comm.all_reduce(x, "max")
        except isthmus.AbortedError as error:
            if f"revoked by rank {rank} " not in str(error):
                raise SystemExit(f"membership: {error}") from None
            return time.monotonic()


def revoke(zygote: Zygote, shape: str, times: int, chance: random.Random) -> dict[str, list[float]]:
    out = []
    for _ in range(times):
        rank, after = chance.randrange(WORLD), chance.uniform(0.02, 0.1)
        with job(zygote, WORLD, lambda me, rank=rank, after=after: revoked(me, rank, after), shape) as ranks:
            ended = results(ranks)
        out.append(max(ended) - ended[rank])
    return {"revoke": out}


def looker(me: Me, times: int) -> list[float]:
    from isthmus.elastic._door import Door

    comm = me.init()
    door = Door(lambda text: None)
    door.publisher = 0
    found = []
    for _ in range(times):
        comm.barrier()
        begin = time.monotonic()
        if door.ask(comm, 1):
            raise SystemExit("membership: somebody has come")
        found.append(time.monotonic() - begin)
    return found


def look(zygote: Zygote, shape: str, times: int) -> dict[str, list[float]]:
    with job(zygote, MEMBERS, lambda me: looker(me, times), shape) as ranks:
        return {"look": [max(each) for each in zip(*results(ranks), strict=True)]}


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grows", type=int, default=100, help="of each shape")
    parser.add_argument("--kills", type=int, default=30, help="of each shape")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beside", action="store_true", help="beside torchft's Manager over Gloo, and nothing else")
    parser.add_argument("--rounds", type=int, default=12, help="of --beside; the contenders alternate")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    document: dict[str, Any]
    results_folder = ROOT / "bench" / "results"
    if args.beside:
        document = {
            **circumstances(f"python bench/membership.py --beside --rounds {args.rounds} --seed {args.seed}"),
            **membership_beside.measure(args.rounds, args.seed),
        }
        for name, row in document["figures"].items():
            print(f"{name:28}{row['times']:>5}" + "".join(f"{row[key]:>10}" for key in ("median_ms", "least_ms", "most_ms")))
        (args.out or results_folder / "membership_beside.json").write_text(json.dumps(document, indent=1) + "\n")
        return 0
    args.out = args.out or results_folder / "membership.json"
    if min(args.grows, args.kills) < 1:
        parser.error("--grows and --kills must be at least 1")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    document = {
        **circumstances(f"python bench/membership.py --grows {args.grows} --kills {args.kills} --seed {args.seed}"),
        "figures": {},
    }
    print(f"{args.grows} newcomers to {MEMBERS} ranks, {args.kills} kills among {WORLD} ranks, of each shape, "
          f"on {os.cpu_count()} processors")  # fmt: skip
    print(f"{'':20}{'times':>7}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'target':>10}")
    chance = random.Random(args.seed)
    zygote = Zygote()
    try:
        for shape in SHAPES:
            found = {**grow(zygote, shape, args.grows), **shrink(zygote, shape, args.kills, chance)}
            found.update(revoke(zygote, shape, args.kills, chance))
            found.update(look(zygote, shape, 10 * args.grows))
            found.update(replace(zygote, shape, args.kills, chance))
            few = max(1, args.kills // 3)
            many = {**shrink(zygote, shape, few, chance, MANY), **replace(zygote, shape, few, chance, MANY)}
            found.update({f"{name} {MANY}": values for name, values in many.items()})
            for name, values in found.items():
                quantiles = {"p50": 0.5, "p99": 0.99, "max": 1.0}
                row = {f"{key}_ms": round(quantile(values, q) * 1e3, 2) for key, q in quantiles.items()}
                target = TARGETS.get(name)
                document["figures"][f"{name}, {shape}"] = {"times": len(values), **row, "target_ms": target}
                print(f"{name + ', ' + shape:20}{len(values):>7}" + "".join(f"{value:>10}" for value in row.values())
                      + f"{target or '':>10}")  # fmt: skip
    finally:
        zygote.close()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
