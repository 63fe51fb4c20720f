"""The time of large collectives over bridges of unlike rates, against the least there is; writes bench/results/bridge.json.

    sudo .venv/bin/python bench/bridge.py            # ten minutes at most; root, for network namespaces
    sudo .venv/bin/python bench/bridge.py --check    # the same, and fails where a limit is not kept; writes nothing
    sudo .venv/bin/python bench/bridge.py --quick --mib 1    # shows that the program runs, and measures nothing

The benchmark is a rehearsal: devices are simulated, and no figure is a measurement of a vendor's hardware. The network
between islands is the kernel's. Each island is a network namespace. TCP joins the islands. Each island's interface is
shaped to the rate of the island's bridge.

T* is the least time that any algorithm needs to bring the bytes over the bridges (least_time(); docs/howto/bench.md says
where it comes from). T* is computed twice: with the rates of the interfaces, whose headers count, and with the rates that
one plain TCP connection gets through the interfaces. Two times stand beside T* of an all_reduce:

- Isthmus with equal shares for all islands. The difference shows what the declared rates are worth.
- A ring of equal parts, that of torch's Gloo backend. Such a ring cannot be faster than 2 (k-1)/k n / min B.

A run in which the ranks use more than half of all processors says nothing about bridges, and is marked VOID. Where other
processes used more than a tenth of the processors, a warning says so.

The row of overlap: two islands. Each has four engines: copies from the device, copies to the device, and the interface
each way. How long each was at work is measured in the timed calls: of the copies by the simulated device's clock; of the
interface by the bytes that it has carried, at the rate at which it carried a plain TCP connection's in the same run. The row
says which part of the work that could run side by side did so: (sum busy - T) / (sum busy - max busy).

The rows of operations behind each other: all_reduces that are called one behind the other, without waiting, against one of
all their bytes. Sixteen of one size, and the four buckets in which DDP would reduce as much (1, 25, 25 and 13 of 64 parts).
Once copies and interfaces have one rate, so that what a library's order keeps apart costs most; once copies have the rate
that they have in the other rows. The ranks know the rates, from profiles, as in the other rows; chunks follow from them.

The row of latency: an all_reduce of 8 bytes over two islands of one rank each, on one host. A stream stands at a gate until
the host lets it go on, and the gate takes the declared time. A call may take two gates and 60 us. The hand-offs of a call,
and the kernel's own by a futex and by an eventfd (hand_offs.py), are measured by themselves in the same run, for the
reader: where they alone take 60 us the machine is not idle. In turns with this call the whole call is timed without the
gates' latency. The difference says at how many gates a call has stood.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench")]

from bridge_rank import COLLECTIVES, MOST_BUSY, WAYS  # noqa: E402
from circumstances import circumstances  # noqa: E402

UNIT = 50.0  # MB/s (10^6 bytes a second)


@dataclass(frozen=True)
class Fleet:
    """Ranks in order, as `isthmus rehearse` takes them, and the rates of their islands' bridges in UNITs."""

    ranks: str
    bridges: dict[str, float]
    collectives: tuple[str, ...] = COLLECTIVES

    def islands(self) -> list[str]:
        """By rank."""
        from isthmus import rehearse

        return [member.label or member.vendor for member in rehearse.parse_fleet(self.ranks)]


# T* of an all_reduce is n / min B but in the third fleet, whose rates are nearer to each other: 2 (k-1) n / sum B.
# In the last one the two ranks of a host share its interface.
FLEETS = {
    "8:4:1": Fleet("nvidia:1,amd:1,ascend:1", {"nvidia": 8, "amd": 4, "ascend": 1}),
    "4:2:2:1": Fleet("nvidia:1,amd:1,ascend:1,cpu:1", {"nvidia": 4, "amd": 2, "ascend": 2, "cpu": 1}),
    "1.5:1:1": Fleet("nvidia:1,amd:1,ascend:1", {"nvidia": 1.5, "amd": 1, "ascend": 1}, ("all_reduce",)),
    "two hosts": Fleet("nvidia:1@left,amd:1@left,nvidia:1@right,amd:1@right", {"left": 1, "right": 1}),
}
DEVICE = {"copy_out_gbps": 12, "copy_in_gbps": 12, "fabric_gbps": 100, "latency_us": 10}
# A simulation's meanness uses processors. The timed work needs them, so the meanness is switched off.
SWITCHES = {"QUIET": "1", "JITTER_US": "0", "SCRIBBLE": "0"}
TARGETS = {"clock": 1.05, "predicted": 1.03, "overlap": 0.9, "behind": 1.1, "gates": 2.0, "beside_gates_us": 60.0}
OVERLAPPED = Fleet("nvidia:1,amd:1", {"nvidia": 1, "amd": 1}, ("all_reduce",))
BEHIND = {"sixteen": [1 / 16] * 16, "buckets": [part / 64 for part in (1, 25, 25, 13)]}
# The fleets, and the rate of copies from and to devices in MB/s.
BEHIND_ROWS = [(ranks, copies) for copies in (UNIT, 12_000.0) for ranks in ("nvidia:1,amd:1", "nvidia:2,amd:2")]
GATE_US = 500
SMALL_CALLS, SMALL_TURNS = 200, 5
MOST_OTHERS = 0.1  # the part of all processors that other processes may use
NOT_HERE = (
    "not among these fleets: islands of unlike numbers of ranks. There T* of a reduce_scatter is another one, since its",
    "sums have one order; the cost model holds all four collectives to it (test_plan_bridge)",
)
PATIENCE_S = 170.0  # how long a fleet may take
WHAT = "rehearsal: simulated devices; the network between islands is the kernel's TCP through shaped interfaces"


def least_time(collective: str, nbytes: float, ranks: Sequence[int], rates: Sequence[float]) -> float:
    """Seconds in which `nbytes`, those of a rank's larger buffer, can be over the bridges, by whatever algorithm.

    `ranks` are how many each island has, `rates` are its bridge's bytes a second, each way.
    """
    islands, world = len(rates), sum(ranks)
    shares = [of / world for of in ranks]
    if collective == "all_to_all":
        return max(of * (1 - share) * nbytes / rate for of, share, rate in zip(ranks, shares, rates, strict=True))
    if collective == "all_reduce":
        return max(nbytes / min(rates), 2 * (islands - 1) * nbytes / sum(rates))
    one = max(max(share, 1 - share) * nbytes / rate for share, rate in zip(shares, rates, strict=True))
    return max(one, (islands - 1) * nbytes / sum(rates))


def ring_time(nbytes: float, rates: Sequence[float]) -> float:
    return 2 * (len(rates) - 1) / len(rates) * nbytes / min(rates)


# ---- the driver ----------------------------------------------------------------------------------------------------


def run_fleet(name: str, fleet: Fleet, nbytes: int, repeat: int, gloo: bool) -> list[dict[str, Any]]:
    """A row for each collective."""
    rates = {island: share * UNIT for island, share in fleet.bridges.items()}
    links = {island: {"bridge_mbps": rate, **(DEVICE if island != "cpu" else {})} for island, rate in rates.items()}
    what = ["raw", *fleet.collectives, "equal", *(["gloo"] if gloo else [])]
    results = run(name, fleet, links, what, nbytes, repeat, SWITCHES)
    return [judged(name, fleet, collective, rates, nbytes, links, results) for collective in fleet.collectives]


def run(
    name: str,
    fleet: Fleet,
    links: dict[str, Any],
    what: list[str],
    nbytes: int,
    repeat: int,
    switches: dict[str, str],
    **more: Any,
) -> list[dict[str, Any]]:
    """Runs the ranks of a fleet; `more` is in their task. Returns what each found, by the name of a function of its Rank."""
    from isthmus import rehearse

    with tempfile.TemporaryDirectory(prefix="isthmus-bridge-") as text:
        folder = Path(text)
        (folder / "links.json").write_text(json.dumps(links))
        rates = {island: link.get("bridge_mbps", 0.0) for island, link in links.items()}
        task = {"folder": text, "rates": rates, "islands": fleet.islands(), "nbytes": nbytes, "repeat": repeat, "what": what}
        task |= more
        (folder / "task.json").write_text(json.dumps(task))
        command = [sys.executable, str(ROOT / "bench" / "bridge_rank.py"), text]
        with rehearse.start(command, fleet.ranks, links=folder / "links.json", switches=switches) as job:
            ended = job.wait(PATIENCE_S)
        if any(end.returncode for end in ended):
            said = "\n".join(f"rank {end.rank}, status {end.returncode}: {end.stderr[-1500:]}" for end in ended)
            raise SystemExit(f"bridge: {name}: a rank failed\n{said}")
        return [json.loads((folder / f"result.{rank}.json").read_text()) for rank in range(len(ended))]


def overlap_of(busy: dict[str, float], seconds: float) -> float:
    """The part of what could run side by side that did; 1 where the busiest resource was never idle."""
    least, most = max(busy.values()), sum(busy.values())
    return (most - seconds) / (most - least)


def run_overlap(nbytes: int, repeat: int) -> dict[str, Any]:
    rate = {"copy_out_gbps": UNIT / 1000, "copy_in_gbps": UNIT / 1000, "bridge_mbps": UNIT}
    switches = {**SWITCHES, "QUEUES": "4"}  # hardware queues: in one queue no two things run side by side
    links = dict.fromkeys(OVERLAPPED.bridges, rate)
    results = run("overlap", OVERLAPPED, links, ["raw", "all_reduce"], nbytes, repeat, switches)
    found, wire = results[0]["all_reduce"], results[0]["raw"]["wire"][0]
    busy = {**found["engine_seconds"], **{way: carried / wire for way, carried in found["interface_bytes"].items()}}
    return {
        "rehearsal": WHAT,
        "fleet": OVERLAPPED.ranks,
        "links": rate,
        "switches": switches,
        "bytes": nbytes,
        "interface_rate": wire,
        "busy_seconds_of_a_rank": {way: busy[way] for way in WAYS},
        "isthmus": {key: value for key, value in found.items() if key not in ("plan_predicts", "unknown")},
        "overlap": overlap_of(busy, statistics.mean(found["seconds"])),
        "right": all(one["all_reduce"]["right"] for one in results),
        "void": found["void"],
    }


def run_behind(ranks: str, copies: float, nbytes: int, repeat: int) -> dict[str, Any]:
    fleet = Fleet(ranks, OVERLAPPED.bridges)
    rate = {"copy_out_gbps": copies / 1000, "copy_in_gbps": copies / 1000, "bridge_mbps": UNIT}
    rate["fabric_gbps"] = DEVICE["fabric_gbps"]
    switches = {**SWITCHES, "QUEUES": "4"}
    links, task = dict.fromkeys(fleet.bridges, rate), {"parts": BEHIND, "copies": copies * 1e6}
    results = run("behind", fleet, links, ["behind"], nbytes, repeat, switches, **task)
    found = results[0]["behind"]
    ratio = {name: found[name]["median"] / found["one"]["median"] for name in BEHIND}
    return {
        "rehearsal": WHAT,
        "fleet": ranks,
        "links": rate,
        "switches": switches,
        "bytes": nbytes,
        "parts": BEHIND,
        "isthmus": found,
        "ratio": ratio,
        "right": all(each["right"] for one in results for each in one["behind"].values()),
        # What keeps the limit although the processors were busy keeps it, unless they were busy with the one as well.
        "void": {name: found["one"]["void"] or (found[name]["void"] and ratio[name] > TARGETS["behind"]) for name in BEHIND},
    }


def hand_offs(rounds: int) -> tuple[list[str], float, dict[str, float]]:
    """Who waits at each hand-off of a call and how, the median seconds of their chain, and of one hand-off by the kernel."""
    command = [sys.executable, str(ROOT / "bench" / "hand_offs.py"), "--rounds", str(rounds)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if ended.returncode:
        raise SystemExit(f"bridge: hand_offs.py ended with status {ended.returncode}\n{ended.stderr[-1500:]}")
    found = json.loads(ended.stdout)
    return found["hand_offs"], statistics.median(found["seconds"]), found["single_p50_seconds"]


def run_latency(turns: int) -> dict[str, Any]:
    switches = {**SWITCHES, "QUEUES": "4"}
    found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    chain = []
    single: dict[str, list[float]] = {"futex": [], "eventfd": []}
    for _ in range(turns):
        waits, median, raw = hand_offs(SMALL_CALLS)
        chain.append(median)
        for how, seconds in single.items():
            seconds.append(raw[how])
        for which, more in (("without", {}), ("with", {"GATE_US": str(GATE_US)})):
            links: dict[str, Any] = dict.fromkeys(OVERLAPPED.bridges, {})
            results = run("latency", OVERLAPPED, links, ["small"], 8, SMALL_CALLS, {**switches, **more})
            found[which].append(results[0]["small"])
    medians = {which: [one["median"] for one in each] for which, each in found.items()}
    middle = {which: statistics.median(each) for which, each in medians.items()}
    keys = ("cpu_share", "machine_busy_share", "others_share")
    shares = {which: {key: statistics.mean(one[key] for one in each) for key in keys} for which, each in found.items()}
    void = shares["with"]["cpu_share"] > MOST_BUSY
    return {
        "rehearsal": WHAT,
        "fleet": OVERLAPPED.ranks,
        "switches": switches,
        "gate_us": GATE_US,
        "bytes": 8,
        "calls": SMALL_CALLS,
        "p50_seconds": medians,
        "hand_offs": {"waits": waits, "p50_seconds": chain, "single_p50_seconds": single},
        "most_seconds": (TARGETS["gates"] * GATE_US + TARGETS["beside_gates_us"]) / 1e6,
        "gates": (middle["with"] - middle["without"]) / (GATE_US / 1e6),
        # Without the latency a call is only work, and has no target.
        "processors": {which: {**share, "void": void and which == "with"} for which, share in shares.items()},
        "right": all(one["right"] for each in found.values() for one in each),
        "void": void,
    }


def judged(
    name: str,
    fleet: Fleet,
    collective: str,
    rates: dict[str, float],
    nbytes: int,
    links: dict[str, Any],
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    wire = [rate * 1e6 for rate in rates.values()]
    islands = fleet.islands()
    ranks = [islands.count(island) for island in rates]
    order = sorted(range(len(wire)), key=lambda i: -wire[i])
    fastest = [order[1] if i == order[0] else order[0] for i in range(len(wire))]
    raw = results[0]["raw"]["payload"]
    # A connection shows the rate of the slower of its two interfaces. More cannot be told of the fastest island's interface.
    part = [got / min(wire[i], wire[fastest[i]]) for i, got in enumerate(raw)]
    goodput = [b * min(p, 1.0) for b, p in zip(wire, part, strict=True)]
    ours = results[0][collective]
    least = least_time(collective, nbytes, ranks, wire)
    predictions = [one[collective]["plan_predicts"] for one in results]
    whole = all(p is not None for p in predictions)
    predicted = max((p["seconds"] for p in predictions), default=0.0) if whole else None
    beside = ("equal", "gloo") if collective == "all_reduce" else ()
    row: dict[str, Any] = {
        "rehearsal": WHAT,
        "bridges": name,
        "collective": collective,
        "fleet": fleet.ranks,
        "links": links,
        "switches": SWITCHES,
        "bytes": nbytes,
        "least_seconds": least,
        "least_seconds_at_goodput": least_time(collective, nbytes, ranks, goodput),
        "goodput": {"bytes_per_second": raw, "part_of_interface": part},
        "isthmus": {key: value for key, value in ours.items() if key not in ("plan_predicts", "unknown")},
        "ratio": ours["median"] / least,
        "ratio_at_goodput": ours["median"] / least_time(collective, nbytes, ranks, goodput),
        "right": all(one[who].get("right", True) for one in results for who in (collective, *beside) if who in one),
        "predicted": {"seconds": predicted, "by_rank": predictions},
        "predicted_ratio": predicted / least if predicted else None,
        "void": ours["void"],
    }
    if beside:
        row["isthmus_with_equal_shares"] = results[0]["equal"]
        row["gloo"] = results[0].get("gloo", {"absent": "left out"})
        row["ring_least_seconds"] = ring_time(nbytes, wire)
    if not whole:
        unknown = next((one[collective]["unknown"] for one in results if one[collective]["unknown"]), "")
        row["predicted"]["unknown"] = unknown
    return row


def processors(found: dict[str, Any]) -> str:
    """Who had the processors while the operation was timed."""
    shares = f"the ranks had {found['cpu_share']:.0%} of the processors, all {found['machine_busy_share']:.0%}"
    return shares + ("  VOID" if found["void"] else "")


def warn(title: str, found: dict[str, Any]) -> None:
    if found["others_share"] > MOST_OTHERS:
        print(f"rehearsal  WARNING: others had {found['others_share']:.0%} of the processors meanwhile: {title}")


def show(row: dict[str, Any]) -> None:
    ours = row["isthmus"]

    def line(title: str, seconds: float | None, more: str = "") -> None:
        text = "unknown" if seconds is None else f"{seconds * 1e3:8.1f} ms {seconds / row['least_seconds']:6.3f} T*"
        print(f"rehearsal  {title:34} {text} {more}".rstrip())

    def measured(title: str, found: dict[str, Any]) -> None:
        line(title, found["median"], f"{found['min'] * 1e3:.1f} to {found['max'] * 1e3:.1f} ms, {processors(found)}")
        warn(title, found)

    size = f"{row['bytes'] >> 20} MiB of float32"
    print(f"rehearsal  bridges {row['bridges']} of {UNIT:g} MB/s: {row['fleet']}, {row['collective']} of {size}")
    line("T*, at the interfaces' rates", row["least_seconds"])
    parts = ", ".join(f"{p:.1%}" for p in row["goodput"]["part_of_interface"])
    line("T*, at a TCP connection's rates", row["least_seconds_at_goodput"], f"it gets {parts}")
    measured("isthmus, median", ours)
    line("isthmus, last call, by explain()", ours["last"] and ours["last"]["seconds"], "rank 0's own")
    line("isthmus, predicted", row["predicted"]["seconds"], row["predicted"].get("unknown", "slowest rank"))
    if "gloo" in row:
        measured("isthmus with equal shares, median", row["isthmus_with_equal_shares"])
        line("ring of equal parts, least", row["ring_least_seconds"])
        if "absent" in row["gloo"]:
            line("gloo's ring, median", None, row["gloo"]["absent"])
        else:
            measured("gloo's ring, median", row["gloo"])
    for title, ratio, target, void in (
        ("by the clock", row["ratio"], TARGETS["clock"], row["void"]),
        ("by the cost model", row["predicted_ratio"], TARGETS["predicted"], False),
    ):
        print(f"rehearsal  {title}: {figure(ratio)} of T*, target {target}: {word(ratio, target, void)}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def figure(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def word(ratio: float | None, target: float, void: bool) -> str:
    return "unknown" if ratio is None else "VOID" if void else "reached" if ratio <= target else "NOT reached"


def show_overlap(row: dict[str, Any]) -> None:
    ours, busy = row["isthmus"], row["busy_seconds_of_a_rank"]
    print(f"rehearsal  overlap: {row['fleet']}, all_reduce of {row['bytes'] >> 20} MiB of float32, all of {UNIT:g} MB/s")
    print(f"rehearsal  at work: {', '.join(f'{way} {seconds * 1e3:.1f} ms' for way, seconds in busy.items())}")
    spread = f"{ours['min'] * 1e3:.1f} to {ours['max'] * 1e3:.1f} ms"
    print(f"rehearsal  isthmus, median {ours['median'] * 1e3:.1f} ms ({spread}), {processors(ours)}")
    warn("overlap", ours)
    word = "VOID" if row["void"] else "reached" if row["overlap"] >= TARGETS["overlap"] else "NOT reached"
    print(f"rehearsal  overlap {row['overlap']:.3f}, target {TARGETS['overlap']}: {word}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def rates_of(row: dict[str, Any]) -> str:
    return f"copies of {row['links']['copy_out_gbps'] * 1000:g} MB/s and interfaces of {row['links']['bridge_mbps']:g}"


def show_behind(row: dict[str, Any]) -> None:
    size = f"{row['bytes'] >> 20} MiB of float32"
    print(f"rehearsal  behind each other: {row['fleet']}, all_reduces of {size}, {rates_of(row)}")
    for name, found in row["isthmus"].items():
        spread = f"{found['min'] * 1e3:.1f} to {found['max'] * 1e3:.1f} ms"
        print(f"rehearsal  {name}, median {found['median'] * 1e3:.1f} ms ({spread}), {processors(found)}")
        warn(name, found)
    for name, ratio in row["ratio"].items():
        target = TARGETS["behind"]
        print(f"rehearsal  {name}: {ratio:.3f} of one, target {target}: {word(ratio, target, row['void'][name])}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def show_latency(row: dict[str, Any]) -> None:
    print(f"rehearsal  latency: {row['fleet']} on one host, all_reduce of 8 bytes, a gate takes {row['gate_us']} us")

    def line(title: str, turns: list[float], more: str) -> None:
        spread = f"{min(turns) * 1e6:.0f} to {max(turns) * 1e6:.0f} us of {len(turns)} turns"
        print(f"rehearsal  {title:42} {statistics.median(turns) * 1e6:8.0f} us ({spread}), {more}")

    for which, title in (("with", "p50 of a call"), ("without", "p50 of a whole call without that latency")):
        line(title, row["p50_seconds"][which], processors(row["processors"][which]))
        warn(title, row["processors"][which])
    chain = row["hand_offs"]
    line(f"p50 of {len(chain['waits'])} hand-offs alone", chain["p50_seconds"], "two processes and a counter")
    for how, seconds in chain["single_p50_seconds"].items():
        times = len(chain["waits"])
        line(f"p50 of {times} hand-offs by {how}", [times * one for one in seconds], "two processes that sleep")
    print(f"rehearsal  a call with that latency takes longer by {row['gates']:.2f} gates than without")
    middle = statistics.median(row["p50_seconds"]["with"])
    word = "VOID" if row["void"] else "reached" if quick_enough(row) else "NOT reached"
    most = f"{row['most_seconds'] * 1e6:.0f} us ({TARGETS['gates']:g} gates and {TARGETS['beside_gates_us']:g} us)"
    print(f"rehearsal  p50 {middle * 1e6:.0f} us, target {most}: {word}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="size of the message (64)")
    parser.add_argument("--repeat", type=int, default=5, help="timed repetitions (5)")
    parser.add_argument("--fleets", nargs="+", choices=list(FLEETS), default=list(FLEETS), help="only these")
    parser.add_argument("--check", action="store_true", help="fails where a limit is not kept; no file without --out")
    parser.add_argument("--quick", action="store_true", help="only that it runs: one fleet, one turn of latency, no Gloo")
    parser.add_argument("--latency", action="store_true", help="the row of latency alone, on any machine; no file")
    parser.add_argument("--behind", action="store_true", help="the rows of operations behind each other alone; no file")
    parser.add_argument("--out", type=Path, help="the file of results (bench/results/bridge.json; with --quick none)")
    args = parser.parse_args()
    if not 1 <= args.mib <= 256 or not 1 <= args.repeat <= 100:
        parser.error("--mib must be from 1 to 256, --repeat from 1 to 100")
    if args.quick and args.check:
        parser.error("--check judges figures, and --quick has none to judge")
    from isthmus import Error, __version__

    print(f"rehearsal  {WHAT}; no figure below is a measurement of a device or a network card")
    for line in NOT_HERE:
        print(f"rehearsal  {line}")
    if args.quick:
        print("rehearsal  quick: it shows that this runs; no target counts, but every result must be right")
    if args.latency:
        return alone()
    if args.behind:
        os.environ.setdefault("ISTHMUS_TIMEOUT", "30")
        return 0 if all(row["right"] for row in run_all_behind(BEHIND_ROWS, args.mib << 20, args.repeat)) else 1
    quick = " --quick" if args.quick else ""
    made = circumstances(f"python bench/bridge.py --mib {args.mib} --repeat {args.repeat}{quick}")
    os.environ.setdefault("ISTHMUS_TIMEOUT", "30")  # the ranks'
    names = args.fleets[: 1 if args.quick else None]
    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            more = run_fleet(name, FLEETS[name], args.mib << 20, args.repeat, not args.quick)
            for row in more:
                show(row)
            rows += more
        overlap = run_overlap(args.mib << 20, args.repeat)
        show_overlap(overlap)
        behind = run_all_behind(BEHIND_ROWS[: 1 if args.quick else None], args.mib << 20, args.repeat)
        latency = run_latency(1 if args.quick else SMALL_TURNS)
        show_latency(latency)
    except Error as error:
        print(f"bridge: {error}", file=sys.stderr)
        return 2
    document = {
        "rehearsal": WHAT,
        "simulated": True,
        "isthmus": __version__,
        **made,
        "targets": TARGETS,
        "rows": rows,
        "overlap": overlap,
        "behind": behind,
        "latency": latency,
    }
    out = args.out or (None if args.quick or args.check else ROOT / "bench" / "results" / "bridge.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    if not all(row["right"] for row in (*rows, overlap, *behind, latency)):
        return 1
    short = [] if args.quick else missed(document)
    for what in short:
        print(f"rehearsal  NOT kept: {what}")
    return 1 if args.check and short else 0


def run_all_behind(chosen: Sequence[tuple[str, float]], nbytes: int, repeat: int) -> list[dict[str, Any]]:
    rows = []
    for ranks, copies in chosen:
        rows.append(run_behind(ranks, copies, nbytes, repeat))
        show_behind(rows[-1])
    return rows


def alone() -> int:
    os.environ.setdefault("ISTHMUS_TIMEOUT", "30")
    latency = run_latency(SMALL_TURNS)
    show_latency(latency)
    return 0 if latency["right"] and quick_enough(latency) and not latency["void"] else 1


def quick_enough(row: dict[str, Any]) -> bool:
    return bool(statistics.median(row["p50_seconds"]["with"]) <= row["most_seconds"])


def missed(found: dict[str, Any]) -> list[str]:
    """A line for each limit that is not kept, and for each figure that is void or not known: of those nobody knows.

    `found` is what the file of results has.
    """
    short = []
    overlap, latency = found["overlap"], found["latency"]
    for row in found["rows"]:
        where = f"{row['collective']} over {row['bridges']}"
        for title, ratio, void in (("clock", row["ratio"], row["void"]), ("predicted", row["predicted_ratio"], False)):
            said = word(ratio, TARGETS[title], void)
            if said != "reached":
                short.append(f"{where}, {title}: {figure(ratio)} of T*, limit {TARGETS[title]}: {said}")
    if overlap["void"] or overlap["overlap"] < TARGETS["overlap"]:
        void = ": VOID" if overlap["void"] else ""
        short.append(f"overlap: {overlap['overlap']:.3f}, limit {TARGETS['overlap']}{void}")
    for row in found["behind"]:
        for name, ratio in row["ratio"].items():
            said = word(ratio, TARGETS["behind"], row["void"][name])
            if said != "reached":
                where = f"{name} behind each other, {row['fleet']}, {rates_of(row)}"
                short.append(f"{where}: {ratio:.3f} of one, limit {TARGETS['behind']}: {said}")
    if latency["void"] or not quick_enough(latency):
        middle = statistics.median(latency["p50_seconds"]["with"]) * 1e6
        void = ": VOID" if latency["void"] else ""
        short.append(f"8 bytes: p50 {middle:.0f} us, limit {latency['most_seconds'] * 1e6:.0f} us{void}")
    return short


if __name__ == "__main__":
    sys.exit(main())
