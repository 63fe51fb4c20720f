"""What bench/gpu.py makes of its figures: the targets, which of them are missed, and the table."""

from __future__ import annotations

import statistics
from typing import Any

from gpu_ranks import COLLECTIVES

TARGETS = {
    "moves": 0.92,
    "all_reduce": 0.88,
    "reduce_scatter": 0.80,
    "all_gather": 0.80,
    "buckets": 0.9,
    "gloo": 17.0,
    "gemm": 1.03,
    "small_us": 15.0,  # an all_reduce of 8 bytes
}
LARGE = 1 << 20  # from this size on Isthmus is to beat Gloo by the target
LIMIT_FROM = 16 << 20  # from this size on the limits' rates are to be reached
SMALL = 8  # up to so many bytes an all_reduce is also timed one call at a time
INCOMPLETE = "incomplete: the run has not come to its end"
NOT_ASKED = "not asked for"


def least_seconds(row: dict[str, Any], kinds: list[str], rates: dict[str, float]) -> float:
    """What the copies take at least, and the sums, and the memory of ranks on the CPU. One GPU carries the copies of all its
    ranks.

    The rate of sums is of all threads that reduce at once. That of memory is what the host's memory moves: each rank on the
    CPU has its input read there and its output written. What is staged may stay in caches, and does not count.
    """
    gpus, cpus, ranks, n = kinds.count("gpu"), kinds.count("cpu"), len(kinds), row["bytes"]
    sums = 0.0
    if row["collective"] in ("all_reduce", "reduce_scatter"):
        result = n / (1 if row["collective"] == "all_reduce" else ranks)
        out, back = gpus * n, gpus * result
        sums = (ranks - 1) * n  # of all ranks together
        touched = cpus * (n + result)
    elif row["collective"] == "broadcast":
        out, back = (n, (gpus - 1) * n) if kinds[0] == "gpu" else (0, gpus * n)
        touched = cpus * n
    elif row["collective"] == "all_gather":
        out, back = gpus * n / ranks, gpus * n * (ranks - 1) / ranks
        touched = cpus * (n / ranks + n)
    else:
        out, back = gpus * n, gpus * n
        touched = cpus * 2 * n
    at_once = min(out, back)  # as many go both ways at once; the rest of the longer way goes alone
    copies = at_once / rates["both"] + (out - at_once) / rates["out"] + (back - at_once) / rates["in"]
    moved = {"sums": sums, "memory": touched}
    return float(max(copies, *(amount / rates[limit] for limit, amount in moved.items() if amount), 0.0))


def judge(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each round a ratio, of two things that this round has measured; a verdict is on the median of the ratios."""
    kinds: list[str] = result["ranks"]
    verdicts = []
    against_gloo: list[float] = []
    for row in result["rows"]:
        what = f"{row['collective']} {row['bytes']} B"
        for name in ("gloo", "relay"):
            if name in row["seconds"]:
                ratios = [a / b for a, b in zip(row["seconds"][name], row["seconds"]["isthmus"], strict=True)]
                verdicts.append(verdict(f"{what}: {name} over isthmus", ratios, None, True))
                if name == "gloo" and row["asked"] >= LARGE and row["collective"] in ("all_reduce", "broadcast"):
                    against_gloo.append(statistics.median(ratios))
        if "limits" in row:
            target = TARGETS.get(row["collective"], TARGETS["moves"])
            verdicts.append(verdict(f"{what}: share of the limit of {counting(row)}", shares(row, kinds), target, True))
        if "one_at_a_time" in row:
            alone, behind = ([1e6 * took for took in of["isthmus"]] for of in (row["one_at_a_time"], row["seconds"]))
            words = "us of one call at a time, until its result is there"
            verdicts.append(verdict(f"{what}: {words}", alone, TARGETS["small_us"], False))
            verdicts.append(verdict(f"{what}: us of a call, of those behind each other", behind, None, False))
    if against_gloo:
        mean = statistics.geometric_mean(against_gloo)
        what = f"gloo over isthmus, all_reduce and broadcast from {LARGE} B, geometric mean"
        verdicts.append(
            verdict(what, [min(against_gloo), mean, max(against_gloo)], TARGETS["gloo"], True) | {"median": mean}
        )
        verdicts[-1]["good"] = mean >= TARGETS["gloo"]
    if buckets := result.get("buckets"):
        ratios = [whole / separate for whole, separate in zip(buckets["whole"], buckets["separate"], strict=True)]
        what = f"{buckets['number']} all_reduces of {buckets['bytes']} B behind each other: rate over that of one call"
        verdicts.append(verdict(what, ratios, TARGETS["buckets"], True))
    if products := result.get("products"):
        slower = [b / a for a, b in zip(products["alone"], products["beside"], strict=True)]
        verdicts.append(
            verdict(f"matrix product beside a broadcast of {products['bytes']} B", slower, TARGETS["gemm"], False)
        )
        if min(products["broadcasts"]) == 0:
            verdicts[-1]["good"] = False  # in some round there was none beside it
    return verdicts


def shares(row: dict[str, Any], kinds: list[str]) -> list[float]:
    """Of each round: the least time there is, by this round's rates, over the time that Isthmus took."""
    rounds = [dict(zip(row["limits"], rates, strict=True)) for rates in zip(*row["limits"].values(), strict=True)]
    return [least_seconds(row, kinds, rates) / took for rates, took in zip(rounds, row["seconds"]["isthmus"], strict=True)]


def counting(row: dict[str, Any]) -> str:
    """The limits that count for a row, in words."""
    counts = ["copies", *(limit for limit in ("sums", "memory") if limit in row["limits"])]
    return " and ".join([", ".join(counts[:-1]), counts[-1]] if counts[1:] else counts)


def not_measured(result: dict[str, Any]) -> list[str]:
    """What a target needs and this run has not."""
    rows = result["rows"]
    lacks = [] if result["complete"] else [INCOMPLETE]
    lacks += [f"{name} did not take part: {why}" for name, why in result["absent"].items() if why != NOT_ASKED]
    there = {(row["collective"], row["asked"]) for row in rows}
    missing = [(collective, size) for collective, size in result["planned"] if (collective, size) not in there]
    lacks += [f"no row: {collective} {size} B" for collective, size in missing]
    if not any("one_at_a_time" in row for row in rows):
        lacks.append(f"no all_reduce of {SMALL} B")
    limited = {row["collective"] for row in rows if "limits" in row and row["asked"] >= LIMIT_FROM}
    lacks += [f"no {collective} of {LIMIT_FROM} B or more" for collective in COLLECTIVES if collective not in limited]
    return lacks + [f"no {part}" for part in ("buckets", "products") if part not in result]


def verdict(what: str, ratios: list[float], target: float | None, more: bool) -> dict[str, Any]:
    median = statistics.median(ratios)
    good = None if target is None else (median >= target if more else median <= target)
    return {"what": what, "median": median, "least": min(ratios), "most": max(ratios), "target": target, "good": good}


def show_row(row: dict[str, Any]) -> None:
    medians = "  ".join(f"{name} {statistics.median(times) * 1e6:.1f}" for name, times in row["seconds"].items())
    print(f"{row['collective']:14s} {row['bytes']:>11d} B  us: {medians}", flush=True)


def show_rates(result: dict[str, Any]) -> None:
    rates: dict[str, list[float]] = {}
    for row in result["rows"]:
        for limit, values in row.get("limits", {}).items():
            rates.setdefault(limit, []).extend(values)
    medians = [f"{limit} {statistics.median(values) / 1e9:.1f}" for limit, values in rates.items()]
    if medians:
        print(f"GB/s in the median of all rounds, sums by {result['reducers']} threads: {', '.join(medians)}")


def show(result: dict[str, Any], verdicts: list[dict[str, Any]]) -> None:
    mark = "rehearsal: " if result["simulated"] else ""
    if not result["complete"]:
        print(f"{mark}{INCOMPLETE}; {len(result['rows'])} of {len(result['planned'])} rows")
    for name, why in result["absent"].items():
        print(f"{mark}{name} did not take part: {why}")
    if result["simulated"]:  # its times say nothing
        for row in result["rows"]:
            print(f"{mark}{row['collective']} of {row['bytes']} B: right by {', '.join(row['seconds'])}")
        if "products" in result:
            print(f"{mark}{sum(result['products']['broadcasts'])} broadcasts beside the matrix products")
        return
    show_rates(result)
    for v in verdicts:
        word = {None: "", True: "pass", False: "SHORT"}[v["good"]]
        target = "" if v["target"] is None else f" (target {v['target']})"
        print(f"{v['what']}: {v['median']:.2f} [{v['least']:.2f} {v['most']:.2f}]{target} {word}".rstrip())
