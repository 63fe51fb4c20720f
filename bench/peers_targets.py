"""What the comparison must reach, and whether it did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]
KIB, MIB = 1 << 10, 1 << 20
LABELS = {
    "isthmus": "Isthmus",
    "openmpi": "Open MPI",
    "torch_isthmus": "torch Isthmus",
    "torch_gloo": "torch Gloo",
    "torch_itself": "torch itself",
    "isthmus_c": "Isthmus C",
    "memory_limit": "memory limit",
    "raw_exchange": "raw exchange",
    "raw_round_trip": "raw round trip",
}


@dataclass
class Verdict:
    work: str
    target: float
    reached: float
    low: float | None = None  # the middle half of the paired rounds
    high: float | None = None
    sense: str = ">="

    @property
    def passed(self) -> bool:
        return self.reached >= self.target if self.sense == ">=" else self.reached <= self.target

    def as_dict(self) -> Row:
        return {**asdict(self), "passed": self.passed}


def size_text(n: int) -> str:
    return f"{n // MIB} MiB" if n >= MIB else f"{n // KIB} KiB" if n >= KIB else f"{n} B"


def paired(row: Row, peer: str, own: str) -> list[float]:
    """Ratios of one round's times: above one, Isthmus is faster."""
    seconds = row["seconds"]
    return [p / o for p, o in zip(seconds[peer], seconds[own], strict=True)] if peer in seconds and own in seconds else []


def verdict(work: str, target: float, ratios: list[float], sense: str = ">=") -> Verdict:
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return Verdict(work, target, statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], sense)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(statistics.fmean(logs))


def all_reduce_target(nbytes: int) -> float | None:
    """None between the sizes for which a target is set."""
    return 1.1 if nbytes <= 8 * KIB else 2.0 if nbytes >= 64 * MIB else 1.3 if nbytes >= MIB else None


def judge_openmpi(rows: list[Row]) -> list[Verdict]:
    found, others = [], []
    for row in rows:
        ratios = paired(row, "openmpi", "isthmus")
        if not ratios:
            continue
        label = f"{row['collective']} {size_text(row['bytes'])} / Open MPI"
        if row["collective"] == "all_reduce":
            target = all_reduce_target(row["bytes"])
            if target is not None:
                found.append(verdict(label, target, ratios))
        else:
            found.append(verdict(label, 1.1 if row["bytes"] < 32 * MIB else 0.95, ratios))
            others.append(statistics.median(ratios))
    if others:
        found.append(Verdict("the others, geometric mean / Open MPI", 1.5, geometric_mean(others)))
    return found


def judge_memory(rows: list[Row]) -> list[Verdict]:
    """The least traffic (4n bytes for two ranks) over the memory rate measured in the same round, against the time."""
    found = []
    for row in rows:
        shares = paired(row, "memory_limit", "isthmus")
        if not shares:
            continue
        label = f"all_reduce {size_text(row['bytes'])}, share of"
        found.append(verdict(f"{label} the memory limit", 0.6, shares))
        # What is staged also goes from core to core once each way. Cores of two dies or sockets pass a fraction of what
        # memory does, and where a virtual machine's cores lie changes under it.
        rounds = zip(row["seconds"]["memory_limit"], row["handover_seconds"], row["seconds"]["isthmus"], strict=True)
        found.append(verdict(f"{label} memory and hand-over", 0.6, [(m + h) / own for m, h, own in rounds]))
    return found


def judge_own_share(label: str, row: Row) -> list[Verdict]:
    """What we add to the price of the same call on torch's own backend that does nothing, measured beside it."""
    seconds = row["seconds"]
    if "torch_itself" not in seconds:
        return []
    added = [(t - o) * 1e6 for t, o in zip(seconds["torch_isthmus"], seconds["torch_itself"], strict=True)]
    return [verdict(f"{label}, us above torch's own call", 5, added, "<=")]


def judge_torch(rows: list[Row], c_face: dict[tuple[str, int], float]) -> list[Verdict]:
    found, large = [], []
    for row in rows:
        ratios = paired(row, "torch_gloo", "torch_isthmus")
        if not ratios:
            continue
        label = f"torch {row['collective']}" + (f" {size_text(row['bytes'])}" if row["bytes"] else "")
        small = row["bytes"] <= 64 * KIB
        found.append(verdict(f"{label} / Gloo", 8 if small else 2.5, ratios))
        if row["bytes"] >= MIB:
            large.append(statistics.median(ratios))
        c_time = c_face.get((row["collective"].removesuffix("_list"), row["bytes"]))
        if row["bytes"] <= 8 and c_time is not None:
            above = [(t - c_time) * 1e6 for t in row["seconds"]["torch_isthmus"]]
            found.append(verdict(f"{label}, us above the C face", 5, above, "<="))
            found += judge_own_share(label, row)
    if large:
        found.append(Verdict("torch from 1 MiB up, geometric mean / Gloo", 5, geometric_mean(large)))
    return found


def judge_tcp(rows: list[Row]) -> list[Verdict]:
    found = []
    for row in rows:
        label = f"TCP all_reduce {size_text(row['bytes'])}"
        if "raw_exchange" in row["seconds"]:
            found.append(verdict(f"{label}, share of the best raw exchange", 0.88, paired(row, "raw_exchange", "isthmus_c")))
        if "raw_round_trip" in row["seconds"]:
            times = [1 / r for r in paired(row, "raw_round_trip", "isthmus_c")]
            found.append(verdict(f"{label}, of the raw ping-pong (there and back)", 1.5, times, "<="))
            found.append(verdict(f"{label}, of half the raw ping-pong", 1.5, [2 * t for t in times], "<="))
    return found


def judge(rows: list[Row]) -> list[Verdict]:
    part: Callable[[str], list[Row]] = lambda name: [r for r in rows if r["part"] == name]  # noqa: E731
    c_face = {(r["collective"], r["bytes"]): statistics.median(r["seconds"]["isthmus_c"]) for r in part("c")}
    found = judge_openmpi(part("two")) + judge_memory(part("two")) + judge_torch(part("two"), c_face)
    for row in part("four"):
        ratios = paired(row, "openmpi", "isthmus")
        if ratios:
            found.append(verdict(f"four ranks, {row['collective']} {size_text(row['bytes'])} / Open MPI", 1.3, ratios))
    return found + judge_tcp(part("tcp"))
