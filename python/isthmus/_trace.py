"""What traces say (ISTHMUS_TRACE): where the time of a job's collectives went, and a timeline for trace viewers.

A trace is what `Comm.dump()` gives. The records of one communicator, one of each rank, belong together: they have its name
and size, and stand at the same place among the records of that name in their files.
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
WORK = {"copy": "copies", "reduce": "sums"}
WAITS = {
    "rank": "rank {}",
    "data": "data of rank {}",
    "room": "room at rank {}",
    "sent": "the way to rank {}",
    "device": "its device",
    "earlier": "rank {}, in the operation before",
}
# For whom a rank waits. What the ranks wait for that are waited for says more.
OF_RANKS = {"rank": "waits for ranks of its host", "data": "waits for data", "earlier": "waits until others are through"}
# Nobody ends before all have called.
MEETS_ALL = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


def in_words(what: str, peer: int) -> str:
    if what == "earlier" and peer < 0:
        return "waits for memory for its slots"
    return WORK.get(what) or "waits for " + WAITS.get(what, what).format(peer if peer >= 0 else "?")


@dataclass(frozen=True)
class Step:
    sequence: int
    what: str
    stage: str
    chunk: int
    peer: int
    nbytes: int
    begun_us: float
    duration_us: float


@dataclass(frozen=True)
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


@dataclass
class RankTrace:
    """One rank's record of one communicator. All times are the host's clock, in microseconds."""

    communicator: str
    rank: int
    size: int
    host: str
    pid: int
    ahead_us: float
    """The time of day less the host's clock."""
    rehearsal: str | None
    operations: list[Operation]
    steps: list[Step]
    lost: int

    @property
    def collectives(self) -> dict[int, Operation]:
        return {op.sequence: op for op in self.operations if op.peer is None and op.ended_us is not None}


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
            return "no step was noted: the vendor's library did it all, or older steps are lost"
        what, share = max(kinds.items(), key=lambda kind: kind[1])
        if share < 0.05:
            return "the steps that were noted take no large part"
        if what not in OF_RANKS:
            return f"{share:.0%} of the time of a rank: {in_words(what, -1)}"
        return f"{share:.0%} of the time of a rank: {OF_RANKS[what]}. {self._behind(what)}"

    def _behind(self, what: str) -> str:
        """What stands behind the waits for ranks."""
        awaited: defaultdict[int, float] = defaultdict(float)
        for shares in self.shares.values():
            for (kind, peer), share in shares.items():
                awaited[peer] += share if kind == what else 0.0
        peer = max(awaited, key=lambda rank: awaited[rank])
        of_own = self.shares.get(peer, {})
        own = next(((part, share) for part, share in of_own.items() if part[0] not in OF_RANKS), None)
        if own and own[1] >= LARGE:
            return f"Most is awaited of rank {peer}, and {own[1]:.0%} of its own time: {in_words(*own[0])}"
        if what == "data":
            slow = "the way from it is slow, or its processor busy"
            return f"Most is awaited of rank {peer}, which does little itself: {slow}"
        return "None of them works much: look whether each has a processor, and whether the ways between hosts are slow"


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(paths: Iterable[Path]) -> list[RankTrace]:
    """The records of files that ISTHMUS_TRACE or ISTHMUS_DUMP names. Raises ArgumentError, OSError."""
    return [_rank(record, path) for path in paths for record in _records(path)]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    if data[:1] == b"\x80":
        raise ArgumentError(f"{path} is a flight record in PyTorch's format; the file that ISTHMUS_TRACE names is a trace")
    text = data.decode(errors="replace").strip()
    try:
        found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{path} is no trace: {error}") from None
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
            int(record["rank"]),
            int(record["size"]),
            str(record["host"]),
            int(record["pid"]),
            float(record["unix_us"]) - float(record["now_us"]),
            record.get("rehearsal"),
            operations,
            [_step(*step) for step in record["steps"]],
            int(record["steps_lost"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path} is no trace: {error!r}") from None


def _step(*given: Any) -> Step:
    sequence, what, stage, chunk, peer, nbytes, begun, duration = given
    return Step(int(sequence), str(what), str(stage), int(chunk), int(peer), int(nbytes), float(begun), float(duration))


def communicators(ranks: Sequence[RankTrace]) -> list[list[RankTrace]]:
    """Those that belong together, in the order of the first ones."""
    seen: Counter[tuple[str, int, int, str, int]] = Counter()
    found: defaultdict[tuple[str, int, int], list[RankTrace]] = defaultdict(list)
    for rank in ranks:
        of_process = (rank.communicator, rank.size, rank.rank, rank.host, rank.pid)
        found[rank.communicator, rank.size, seen[of_process]].append(rank)
        seen[of_process] += 1
    return [sorted(one, key=lambda rank: rank.rank) for one in found.values()]


# ---- where the time went ---------------------------------------------------------------------------------------------


def clocks_differ_us(ranks: Sequence[RankTrace]) -> float:
    """By so much at least the hosts' clocks are apart: a rank ended something before another one had called it."""
    ahead = _ahead(ranks)
    worst = 0.0
    for calls in _calls(ranks).values():
        if len(calls) == ranks[0].size and next(iter(calls.values())).collective in MEETS_ALL:
            called = max(op.submitted_us + ahead[rank] for rank, op in calls.items())
            worst = max(worst, called - min((op.ended_us or 0) + ahead[rank] for rank, op in calls.items()))
    return worst


def groups(ranks: Sequence[RankTrace]) -> list[Group]:
    """Of one communicator; first what took the most time."""
    found: dict[tuple[str, str, int], Group] = {}
    sequences: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
    ahead, compare = _ahead(ranks), clocks_differ_us(ranks) == 0
    for sequence, calls in _calls(ranks).items():
        one = next(iter(calls.values()))
        shape = (one.collective, one.dtype, one.nbytes)
        group = found.setdefault(shape, Group(ranks[0].communicator, ranks[0].size, shape))
        sequences[shape].add(sequence)
        if not compare:
            group.seconds.append(max((op.ended_us or 0) - op.turn_us for op in calls.values()) * 1e-6)
            continue
        turn = {rank: op.turn_us + ahead[rank] for rank, op in calls.items()}
        ended = max((op.ended_us or 0) + ahead[rank] for rank, op in calls.items())
        group.seconds.append((ended - max(turn.values())) * 1e-6)
        if len(calls) > 1:
            group.spread.append((max(turn.values()) - min(turn.values())) * 1e-6)
            group.last[max(turn, key=lambda rank: turn[rank])] += 1
    for shape, group in found.items():
        for rank in ranks:
            group.shares[rank.rank] = _shares(rank, sequences[shape])
    return sorted(found.values(), key=lambda group: -group.total)


def _ahead(ranks: Sequence[RankTrace]) -> dict[int, float]:
    """rank: what to add to its times, so that all are of one clock. Ranks of one host have one clock."""
    of_host: dict[str, float] = {}
    for rank in ranks:
        of_host.setdefault(rank.host, rank.ahead_us)
    return {rank.rank: of_host[rank.host] for rank in ranks}


def _calls(ranks: Sequence[RankTrace]) -> dict[int, dict[int, Operation]]:
    """sequence: rank: the call, of collectives that have ended."""
    found: defaultdict[int, dict[int, Operation]] = defaultdict(dict)
    for rank in ranks:
        for sequence, op in rank.collectives.items():
            found[sequence][rank.rank] = op
    return dict(sorted(found.items()))


def _shares(rank: RankTrace, sequences: set[int]) -> dict[tuple[str, int], float]:
    parts: defaultdict[tuple[str, int], float] = defaultdict(float)
    noted = {step.sequence for step in rank.steps} & sequences
    for step in rank.steps:
        if step.sequence in noted:
            parts[step.what, step.peer] += step.duration_us
    whole = sum((op.ended_us or 0) - op.turn_us for op in rank.collectives.values() if op.sequence in noted)
    by_size = sorted(parts.items(), key=lambda part: -part[1])
    return {what: min(1.0, part / whole) for what, part in by_size} if whole > 0 else {}


# ---- a timeline ------------------------------------------------------------------------------------------------------


def timeline(all_ranks: Sequence[RankTrace]) -> dict[str, Any]:
    """Trace events, as Perfetto reads them: a process is a rank, and a communicator's calls and its steps are threads."""
    events: list[dict[str, Any]] = []
    together = communicators(all_ranks)
    ahead = [_ahead(ranks) for ranks in together]
    first = min(
        (
            op.submitted_us + shifts[rank.rank]
            for ranks, shifts in zip(together, ahead, strict=True)
            for rank in ranks
            for op in rank.operations
        ),
        default=0.0,
    )
    for number, ranks in enumerate(together):
        for rank in ranks:
            shift = ahead[number][rank.rank] - first
            where = {"pid": rank.rank, "tid": 2 * number + 1}
            steps = {"pid": rank.rank, "tid": 2 * number + 2}
            name = f"rank {rank.rank} ({rank.host}, pid {rank.pid})"
            events.append({"ph": "M", "name": "process_name", "pid": rank.rank, "args": {"name": name}})
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": rank.communicator}})
            events.append({"ph": "M", "name": "thread_name", **steps, "args": {"name": f"{rank.communicator}: steps"}})
            for op in rank.operations:
                if op.ended_us is not None:
                    events += _call_events(op, shift, where)
            for step in rank.steps:
                events.append(
                    {
                        "ph": "X",
                        "name": in_words(step.what, step.peer),
                        "cat": "work" if step.what in WORK else "wait",
                        "ts": step.begun_us + shift,
                        "dur": step.duration_us,
                        **steps,
                        "args": {"sequence": step.sequence, "stage": step.stage, "chunk": step.chunk, "bytes": step.nbytes},
                    }
                )
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
