"""What traces say (ISTHMUS_TRACE): where the time of a job's collectives went, and a timeline for trace viewers.

A trace is what `Comm.dump()` gives. The records of one communicator have one name, one epoch and the same members.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ._errors import ArgumentError

LARGE = 0.2  # a part of a rank's time
CLOCK_US = 5.0  # so much two readings of one clock may be apart
WORK = {"copy": "copies", "reduce": "sums"}
WAITS = {
    "rank": "rank {}",
    "data": "data of rank {}",
    "room": "room at rank {}",
    "sent": "the path to rank {}",
    "device": "its device",
    "earlier": "rank {}, in the operation before",
    "memory": "memory for its slots",
}
# For whom a rank waits. What the ranks wait for that are waited for says more.
OF_RANKS = {"rank": "waits for ranks of its host", "data": "waits for data", "earlier": "waits until others are through"}
# Nobody ends before all have called.
MEETS_ALL = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


def in_words(what: str, peer: int) -> str:
    if what == "device" and peer >= 0:
        return f"waits for its device (the library there waits for rank {peer})"
    return WORK.get(what) or "waits for " + WAITS.get(what, what).format(peer if peer >= 0 else "?")


@dataclass(frozen=True, slots=True)
class Step:
    sequence: int
    what: str
    stage: str
    chunk: int
    peer: int
    nbytes: int
    begun_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class Operation:
    sequence: int
    collective: str
    dtype: str
    nbytes: int
    peer: int | None
    submitted_us: float
    turn_us: float
    """When the collective before it had ended, or when it was submitted."""
    ended_us: float | None
    result: str


@dataclass(slots=True)
class RankTrace:
    """One rank's record of one communicator. All times are the clock of its machine, in microseconds."""

    communicator: str
    epoch: int
    rank: int
    members: tuple[int, ...]
    host: str
    boot: str
    pid: int
    ahead_us: float
    """The time of day less the machine's clock."""
    rehearsal: str | None
    operations: list[Operation]
    steps: list[Step]
    lost: dict[str, int]
    """Of the process: how many steps and operations are not there any more."""
    connections: list[dict[str, Any]]
    """Of the process, to others; see `context_stats()`."""

    @property
    def collectives(self) -> dict[int, Operation]:
        """sequence: the call, of those that have ended well."""
        return {op.sequence: op for op in self.operations if op.peer is None and op.ended_us and op.result == "ok"}

    @property
    def failed(self) -> int:
        return sum(op.result not in ("ok", "running") for op in self.operations)


@dataclass
class Group:
    """The calls of a communicator that have one shape."""

    communicator: str
    size: int
    shape: tuple[str, str, int]
    seconds: list[float] = field(default_factory=list)
    """Of each call: from the last rank's call, or the end of the operation before, to the end on the last rank."""
    spread: list[float] = field(default_factory=list)
    """From the first rank's call to the last one's; empty where the clocks cannot say."""
    last: Counter[int] = field(default_factory=Counter)
    """How often a rank called last."""
    shares: dict[int, dict[tuple[str, int], float]] = field(default_factory=dict)
    """rank: (what, peer): part of its time in these calls, the largest first."""

    @property
    def total(self) -> float:
        return sum(self.seconds) + sum(self.spread)

    @property
    def verdict(self) -> str:
        """What takes most of the time."""
        if self.spread and median(self.spread) > median(self.seconds):
            rank, often = self.last.most_common(1)[0]
            if often > 0.6 * len(self.spread):
                return f"rank {rank} calls late: look what it does before"
            return "the ranks call at unlike times, and no rank is mostly the last"
        kinds: defaultdict[str, float] = defaultdict(float)
        for shares in self.shares.values():
            for (what, _), share in shares.items():
                kinds[what] += share / len(self.shares)
        if not kinds:
            return "no step was noted: the vendor's library did it all, or it was too short, or older steps are lost"
        what, share = max(kinds.items(), key=lambda kind: kind[1])
        if share < 0.05:
            return "the steps that were noted take no large part"
        if what in OF_RANKS:
            return f"{share:.0%} of the time of a rank: {OF_RANKS[what]}. {self._behind(what)}"
        return f"{share:.0%} of the time of a rank: {in_words(what, self._awaited(what))}"

    def _awaited(self, what: str) -> int:
        """The peer that takes the most of that."""
        of_peer: defaultdict[int, float] = defaultdict(float)
        for shares in self.shares.values():
            for (kind, peer), share in shares.items():
                of_peer[peer] += share if kind == what else 0.0
        return max(of_peer, key=lambda peer: of_peer[peer])

    def _behind(self, what: str) -> str:
        """What stands behind the waits for ranks: from the one that is awaited most to the one for which that one waits."""
        first = rank = self._awaited(what)
        way: list[int] = []
        while rank not in way and rank in self.shares:
            way.append(rank)
            own = self._own(rank)
            if own:
                return f"Most is awaited of rank {first}{self._through(way)}, and {own[1]:.0%} of its own time: {own[0]}"
            rank = next(
                (peer for (kind, peer), share in self.shares[rank].items() if kind in OF_RANKS and share >= LARGE), -1
            )
        for rank in self.shares:
            own = self._own(rank)
            if own:
                return f"Rank {rank} is the one that works: {own[1]:.0%} of its own time: {own[0]}"
        slow = "a way between them is slow, or their processors are busy"
        look = slow if what == "data" else "look whether each has a processor"
        return f"Most is awaited of rank {first}, and none of them works much: {look}"

    @staticmethod
    def _through(way: list[int]) -> str:
        return "" if len(way) == 1 else "".join(f", which waits for rank {rank}" for rank in way[1:])

    def _own(self, rank: int) -> tuple[str, float] | None:
        """What a rank does, or waits for that is no other rank's, where that is a large part."""
        own = ((part, share) for part, share in self.shares[rank].items() if part[0] not in OF_RANKS and share >= LARGE)
        return next(((in_words(*part), share) for part, share in own), None)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(paths: Iterable[Path]) -> tuple[list[RankTrace], list[str]]:
    """The records of files that ISTHMUS_TRACE or ISTHMUS_DUMP names, and what is to be said of them.

    Raises ArgumentError, OSError.
    """
    notes: list[str] = []
    return [_rank(record, path) for path in paths for record in _records(path, notes)], notes


def _records(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    if data[:1] == b"\x80":
        raise ArgumentError(f"{path} is a flight record in PyTorch's format; the file that ISTHMUS_TRACE names is a trace")
    text = data.decode(errors="replace").strip()
    found: list[Any] = []
    broken = 0
    for part in [text] if text.startswith("[") else filter(str.strip, text.split("\n")):
        try:
            one = json.loads(part)
            found += one if isinstance(one, list) else [one]
        except (json.JSONDecodeError, RecursionError) as error:
            broken += 1
            fault = error
    if broken and not found:
        raise ArgumentError(f"{path} is no trace: {fault}")
    if broken:
        notes.append(
            f"{path} has {broken} line{'s' if broken > 1 else ''} that cannot be read, as of a process that was killed"
        )
    for record in found:
        if not isinstance(record, dict) or "entries" not in record:
            raise ArgumentError(f"{path} is no trace: it has something else than records of communicators")
        if "steps" not in record:
            raise ArgumentError(f"{path} has no steps: the job must run with ISTHMUS_TRACE set")
        yield record


def _rank(record: dict[str, Any], path: Path) -> RankTrace:
    try:
        operations = []
        free_us = 0.0
        for entry in sorted(record["entries"], key=lambda entry: float(entry["submitted_us"])):
            begun = float(entry["submitted_us"])
            ended = begun + float(entry["duration_us"]) if "duration_us" in entry else None
            peer = entry.get("peer")
            turn = begun if peer is not None else max(begun, free_us)
            if peer is None and ended is not None:
                free_us = max(free_us, ended)
            shape = (int(entry["sequence"]), str(entry["collective"]), str(entry["dtype"]), int(entry["bytes"]))
            operations.append(Operation(*shape, peer, begun, turn, ended, str(entry.get("result", "running"))))
        return RankTrace(
            str(record["communicator"]),
            int(record["epoch"]),
            int(record["rank"]),
            tuple(map(int, record["members"])),
            str(record["host"]),
            str(record["boot"]),
            int(record["pid"]),
            float(record["unix_us"]) - float(record["now_us"]),
            record.get("rehearsal"),
            operations,
            [_step(*step) for step in record["steps"]],
            {"steps": int(record["steps_lost"]), "operations": int(record["entries_lost"])},
            [dict(one, hostname=str(peer["hostname"])) for peer in record["streams"] for one in peer["connections"]],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is no trace: {error!r}") from None


def _step(*given: Any) -> Step:
    sequence, what, stage, chunk, peer, nbytes, begun, duration = given
    return Step(int(sequence), str(what), str(stage), int(chunk), int(peer), int(nbytes), float(begun), float(duration))


def communicators(ranks: Sequence[RankTrace]) -> list[list[RankTrace]]:
    """Those that belong together, in the order of the first ones. Of two records of one rank the later one."""
    found: defaultdict[tuple[str, int, tuple[int, ...]], dict[int, RankTrace]] = defaultdict(dict)
    for rank in ranks:
        found[rank.communicator, rank.epoch, rank.members][rank.rank] = rank
    return [[one[number] for number in sorted(one)] for one in found.values()]


# ---- clocks ----------------------------------------------------------------------------------------------------------


def clocks(ranks: Sequence[RankTrace]) -> tuple[float, bool]:
    """By how many microseconds at least the clocks of the machines are apart; and whether any call can tell.

    They are, where a rank ended something before another one had called it.
    """
    ahead = _ahead(ranks)
    boot = {rank.rank: rank.boot for rank in ranks}
    if len(set(boot.values())) == 1:
        return 0.0, True
    apart, told = 0.0, False
    for calls in _calls(ranks).values():
        if next(iter(calls.values())).collective not in MEETS_ALL:
            continue
        of_boot: dict[str, tuple[float, float]] = {}  # the last call and the first end of a machine
        for rank, op in calls.items():
            called, ended = of_boot.get(boot[rank], (0.0, float("inf")))
            now = op.submitted_us + ahead[rank], (op.ended_us or 0) + ahead[rank]
            of_boot[boot[rank]] = max(called, now[0]), min(ended, now[1])
        told = told or len(of_boot) > 1
        for one in of_boot:
            for other in of_boot:
                if one != other:
                    apart = max(apart, of_boot[one][0] - of_boot[other][1])
    return (apart if apart > CLOCK_US else 0.0), told


def _ahead(ranks: Sequence[RankTrace], base_us: float | None = None) -> dict[int, float]:
    """rank: what to add to its times, so that all are of one clock: the first rank's, or the time of day less `base_us`.

    Ranks of one machine have one clock. (Times of day, in microseconds, have no fraction as a float.)
    """
    base = ranks[0].ahead_us if base_us is None else base_us
    of_boot: dict[str, float] = {}
    for rank in ranks:
        of_boot.setdefault(rank.boot, rank.ahead_us - base)
    return {rank.rank: of_boot[rank.boot] for rank in ranks}


# ---- where the time went ---------------------------------------------------------------------------------------------


def groups(ranks: Sequence[RankTrace]) -> list[Group]:
    """Of one communicator; first what took the most time. Only calls of which all ranks here still have the record count."""
    found: dict[tuple[str, str, int], Group] = {}
    sequences: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
    apart, _ = clocks(ranks)
    ahead = _ahead(ranks)
    for sequence, calls in _calls(ranks).items():
        if len(calls) < len(ranks):
            continue
        one = next(iter(calls.values()))
        shape = (one.collective, one.dtype, one.nbytes)
        group = found.setdefault(shape, Group(ranks[0].communicator, len(ranks[0].members), shape))
        sequences[shape].append(sequence)
        if apart > 0:
            group.seconds.append(max((op.ended_us or 0) - op.turn_us for op in calls.values()) * 1e-6)
            continue
        turn = {rank: op.turn_us + ahead[rank] for rank, op in calls.items()}
        ended = max((op.ended_us or 0) + ahead[rank] for rank, op in calls.items())
        group.seconds.append((ended - max(turn.values())) * 1e-6)
        if len(calls) > 1:
            group.spread.append((max(turn.values()) - min(turn.values())) * 1e-6)
            group.last[max(turn, key=lambda rank: turn[rank])] += 1
    for rank in ranks:
        parts, whole = _parts(rank)
        for shape, group in found.items():
            group.shares[rank.rank] = _shares(parts, whole, sequences[shape])
    return sorted(found.values(), key=lambda group: -group.total)


def _calls(ranks: Sequence[RankTrace]) -> dict[int, dict[int, Operation]]:
    """sequence: rank: the call."""
    found: defaultdict[int, dict[int, Operation]] = defaultdict(dict)
    for rank in ranks:
        for sequence, op in rank.collectives.items():
            found[sequence][rank.rank] = op
    return dict(sorted(found.items()))


Parts = dict[int, dict[tuple[str, int], float]]


def _parts(rank: RankTrace) -> tuple[Parts, dict[int, float]]:
    """sequence: (what, peer): microseconds of it; and those of the whole call, of calls whose steps are all there."""
    collectives = rank.collectives
    parts: Parts = {}
    for step in rank.steps:
        op = collectives.get(step.sequence)
        if op is None:
            continue
        of_call = parts.setdefault(step.sequence, defaultdict(float))
        # A step may begin while the operation before ends: that time is counted there.
        of_call[step.what, step.peer] += max(0.0, step.begun_us + step.duration_us - max(step.begun_us, op.turn_us))
    if rank.lost["steps"] and parts:
        del parts[min(parts)]  # of the oldest one some are lost
    return parts, {sequence: (collectives[sequence].ended_us or 0) - collectives[sequence].turn_us for sequence in parts}


def _shares(parts: Parts, whole: dict[int, float], sequences: list[int]) -> dict[tuple[str, int], float]:
    summed: defaultdict[tuple[str, int], float] = defaultdict(float)
    time_us = 0.0
    for sequence in sequences:
        if sequence in parts:
            time_us += whole[sequence]
            for what, part in parts[sequence].items():
                summed[what] += part
    by_size = sorted(summed.items(), key=lambda part: -part[1])
    return {what: part / time_us for what, part in by_size} if time_us > 0 else {}


# ---- a timeline ------------------------------------------------------------------------------------------------------


def timeline(all_ranks: Sequence[RankTrace]) -> dict[str, Any]:
    """Trace events, as Perfetto reads them. A communicator's calls are a thread of its process, and its steps another."""
    together = communicators(all_ranks)
    ahead = [_ahead(ranks, all_ranks[0].ahead_us) for ranks in together]
    begins = [
        begin + shifts[rank.rank]
        for ranks, shifts in zip(together, ahead, strict=True)
        for rank in ranks
        for begin in (*(op.submitted_us for op in rank.operations), *(step.begun_us for step in rank.steps))
    ]
    first = min(begins, default=0.0)
    events: list[dict[str, Any]] = []
    processes: dict[tuple[str, int], int] = {}
    for rank in sorted(
        all_ranks, key=lambda rank: (-len(rank.members), rank.rank)
    ):  # numbered as in the largest communicator
        number = processes.setdefault((rank.boot, rank.pid), len(processes))
        if number == len(processes) - 1:
            name = f"rank {rank.rank} ({rank.host}, pid {rank.pid})"
            events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
            events.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}})
    threads: Counter[int] = Counter()
    for number, ranks in enumerate(together):
        for rank in ranks:
            pid = processes[rank.boot, rank.pid]
            shift = ahead[number][rank.rank] - first
            threads[pid] += 2
            where, steps = {"pid": pid, "tid": threads[pid] - 1}, {"pid": pid, "tid": threads[pid]}
            name = rank.communicator if len(ranks[0].members) == 1 else f"{rank.communicator}, rank {rank.rank}"
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": name}})
            events.append({"ph": "M", "name": "thread_name", **steps, "args": {"name": f"{name}: steps"}})
            for op in rank.operations:
                if op.ended_us is not None:
                    events += _call_events(op, shift, where)
            for step in rank.steps:
                arguments = {"sequence": step.sequence, "stage": step.stage, "chunk": step.chunk, "bytes": step.nbytes}
                kind = {"name": in_words(step.what, step.peer), "cat": "work" if step.what in WORK else "wait"}
                at = {"ts": step.begun_us + shift, "dur": step.duration_us}
                events.append({"ph": "X", **kind, **at, **steps, "args": arguments})
    rehearsal = next((rank.rehearsal for rank in all_ranks if rank.rehearsal), None)
    more = {"rehearsal": f"{rehearsal}: simulated devices; no time here is a measurement of a device"} if rehearsal else {}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made_by": "isthmus trace", **more}}


def _call_events(op: Operation, shift: float, where: dict[str, int]) -> list[dict[str, Any]]:
    ended = op.ended_us or 0
    name = f"#{op.sequence} {op.collective}" if op.peer is None else f"{op.collective} {op.peer}"
    arguments = {"dtype": op.dtype, "bytes": op.nbytes, "submitted_us": op.submitted_us, "result": op.result}
    if op.peer is None:
        at = {"ts": op.turn_us + shift, "dur": ended - op.turn_us}
        return [{"ph": "X", "name": name, "cat": "collective", **at, **where, "args": arguments}]
    # Messages overlap. Each is a pair of events with a number of its own.
    pair = {"name": name, "cat": "message", "id": f"{where['pid']}/{where['tid']}/{op.sequence}/{op.submitted_us}", **where}
    return [
        {"ph": "b", "ts": op.submitted_us + shift, **pair, "args": arguments},
        {"ph": "e", "ts": ended + shift, **pair},
    ]
