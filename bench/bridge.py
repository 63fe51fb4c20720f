"""The time of an all_reduce over bridges of unlike rates, against the least time there is; writes bench/results/bridge.json.

    sudo .venv/bin/python bench/bridge.py            # three minutes at most; root, for network namespaces
    sudo .venv/bin/python bench/bridge.py --quick --mib 1    # shows that the program runs, and measures nothing

The benchmark is a rehearsal: devices are simulated, and no figure is a measurement of a vendor's hardware. The network
between islands is the kernel's. Each island is a network namespace. TCP joins the islands. Each island's interface is
shaped to the rate of the island's bridge.

For n bytes and k islands with bridges of B_i bytes a second the least time is

    T* = max(n / min B, 2 (k-1) n / sum B).

T* is computed twice: with the rates of the interfaces, whose headers count, and with the rates that one plain TCP
connection gets through the interfaces. Two times stand beside T*:

- Isthmus with equal shares for all islands. The difference shows what the declared rates are worth.
- A ring of equal parts, that of torch's Gloo backend. Such a ring cannot be faster than 2 (k-1)/k n / min B.

A run in which the ranks use more than half of all processors says nothing about bridges, and is marked VOID. Where other
processes used more than a tenth of the processors, a warning says so.

The row of overlap: two islands. Each has four engines: copies from the device, copies to the device, and the interface each
way. All four have one rate, so each is busy for n / B. The row says which part of the work that could run side by side did
so: (sum busy - T) / (sum busy - max busy).

The row of latency: an all_reduce of 8 bytes over two islands of one rank each, on one host. A stream stands at a gate until
the host lets it go on, and the gate takes the declared time. A call may take two gates and the hand-offs of a call
(hand_offs.py), which are measured by themselves in the same run. In turns with this call the whole call is timed without the
gates' latency. The difference says at how many gates a call has stood.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tests")]

UNIT = 50.0  # MB/s (10^6 bytes a second)
# Ranks in order, with the rates of their islands' bridges in UNITs.
# T* is n / min B in the first two fleets, and 2 (k-1) n / sum B in the third fleet, whose rates are nearer to each other.
FLEETS: dict[str, dict[str, float]] = {
    "8:4:1": {"nvidia": 8, "amd": 4, "ascend": 1},
    "4:2:2:1": {"nvidia": 4, "amd": 2, "ascend": 2, "cpu": 1},
    "1.5:1:1": {"nvidia": 1.5, "amd": 1, "ascend": 1},
}
DEVICE = {"copy_out_gbps": 12, "copy_in_gbps": 12, "fabric_gbps": 100, "latency_us": 10}
# A simulation's meanness uses processors. The timed work needs them, so the meanness is switched off.
SWITCHES = {"QUIET": "1", "JITTER_US": "0", "SCRIBBLE": "0"}
TARGETS = {"clock": 1.15, "predicted": 1.08, "overlap": 0.9, "gates": 2.0}
OVERLAPPED = ("nvidia", "amd")  # one rank each
GATE_US = 500
SMALL_CALLS, SMALL_TURNS = 200, 5
MOST_BUSY = 0.5  # the part of all processors that the ranks may use
MOST_OTHERS = 0.1  # the part of all processors that other processes may use
RAW_SECONDS = 0.6  # how long one plain transfer takes
EQUAL_PORT = 29700  # the port of the second rendezvous
PATIENCE_S = 85.0  # how long a fleet may take
WHAT = "rehearsal: simulated devices; the network between islands is the kernel's TCP through shaped interfaces"


def least_time(nbytes: int, rates: list[float]) -> float:
    return max(nbytes / min(rates), 2 * (len(rates) - 1) * nbytes / sum(rates))


def ring_time(nbytes: int, rates: list[float]) -> float:
    return 2 * (len(rates) - 1) / len(rates) * nbytes / min(rates)


# ---- a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """Seconds so far: of the clock; of processors used by this process, by all processes, and there by interrupts."""

    clock: float
    own: float
    machine: float
    interrupts: float

    @staticmethod
    def now() -> Spent:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        # user, nice, system, idle, iowait, irq, softirq, steal
        words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        tick = os.sysconf("SC_CLK_TCK")
        busy = sum(words) - words[3] - words[4]
        return Spent(time.monotonic(), usage.ru_utime + usage.ru_stime, busy / tick, (words[5] + words[6]) / tick)


class Rank:
    def __init__(self, task: dict[str, Any]) -> None:
        import isthmus
        from devices import DeviceArray, on_host

        self.task = task
        self.number = int(os.environ["ISTHMUS_RANK"])
        self.rates = [rate * 1e6 for rate in task["rates"].values()]
        path = Path(task["folder"]) / f"profile.{self.number}.json"
        self.unknown = self.write_profile(path) if all(self.rates) else "no bridge has a rate"
        self.comm = isthmus.init(settings=None if self.unknown else {"PROFILE": str(path)})
        self.count = task["nbytes"] // 4
        host = np.full(self.count, self.number + 1, np.float32)
        self.x = host if on_host() else DeviceArray.of(host)
        self.on_host = on_host()

    def write_profile(self, path: Path) -> str:
        """Writes what `isthmus tune` finds, rank after rank, with the interface's rate as TCP's. Or returns why not."""
        import fcntl

        from isthmus.cli import tune

        with open(path.with_name("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                profile = tune.measure(0.6)
            except Exception as error:
                return f"rank {self.number} has no profile: {error}"
        rate = self.rates[self.number]
        entries = [entry for entry in profile["entries"] if entry["name"] != "tcp_loopback"]
        entries.append(tune.entry("tcp_loopback", [rate], "not measured: the declared rate of the shaped interface"))
        path.write_text(json.dumps({**profile, "simulated": True, "entries": entries}))
        return ""

    def of_all(self, *values: float) -> np.ndarray[Any, Any]:
        return np.asarray(self.comm.all_gather(np.array(values, np.float64))).reshape(self.comm.size, len(values))

    def timed(self, call: Any) -> dict[str, Any]:
        """The time from the first rank's begin to the last rank's end, by one clock; the ranks' parts of the processors."""
        call()
        seconds = []
        self.comm.barrier()
        since = Spent.now()
        for _ in range(self.task["repeat"]):
            self.comm.barrier()
            begin = time.monotonic()
            call()
            spans = self.of_all(begin, time.monotonic())
            seconds.append(float(spans[:, 1].max() - spans[:, 0].min()))
        return {
            "median": statistics.median(seconds),
            "min": min(seconds),
            "max": max(seconds),
            "seconds": seconds,
            **self.shares(since),
        }

    def shares(self, since: Spent) -> dict[str, Any]:
        """Shares of all processors since then. A rank's includes its simulated device. Interrupts are the network's."""
        now = Spent.now()
        all_of_them = (now.clock - since.clock) * (os.cpu_count() or 1)
        used = [float(own) / all_of_them for own in self.of_all(now.own - since.own)[:, 0]]
        machine = (now.machine - since.machine) / all_of_them
        return {
            "cpu_share": sum(used),
            "cpu_share_by_rank": used,
            "machine_busy_share": machine,
            "others_share": machine - (now.interrupts - since.interrupts) / all_of_them - sum(used),
            "void": sum(used) > MOST_BUSY,
        }

    def right(self) -> bool:
        result = self.x if self.on_host else self.x.get()
        return bool((result == self.comm.size).all())

    def isthmus(self) -> dict[str, Any]:
        found = self.timed(lambda: self.comm.all_reduce(self.x, "max"))
        found["right"] = self.right()
        explained = self.comm.explain("all_reduce", nbytes=self.task["nbytes"], op="max")
        found["explain"] = str(explained)
        found["plan_predicts"] = explained.data.get("predicted")
        found["last"] = explained.data.get("last")
        found["unknown"] = self.unknown
        return found

    def small(self) -> dict[str, Any]:
        for _ in range(20):
            self.comm.all_reduce(self.x, "max")
        seconds = []
        since = Spent.now()
        for _ in range(self.task["repeat"]):
            begin = time.monotonic()
            self.comm.all_reduce(self.x, "max")
            seconds.append(time.monotonic() - begin)
        return {"median": statistics.median(seconds), **self.shares(since), "right": self.right()}

    def equal(self) -> dict[str, Any]:
        """The same operation with equal shares for all islands, whatever the rates."""
        import isthmus

        settings = {"BRIDGE_RATES": ",".join(f"{island}:1" for island in self.task["rates"])}
        address = f"{os.environ['MASTER_ADDR']}:{EQUAL_PORT}"
        with isthmus.init(self.number, self.comm.size, address=address, name="equal", settings=settings) as comm:
            found = self.timed(lambda: comm.all_reduce(self.x, "max"))
        found["right"] = self.right()
        return found

    def raw(self) -> list[float]:
        """Bytes a second of one TCP connection from each island to the fastest other island, one island after the other."""
        with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 9))
            address = [int(part) for part in probe.getsockname()[0].split(".")]
            ports = self.of_all(*address, server.getsockname()[1])
            found = []
            for source in range(self.comm.size):
                to = max((r for r in range(self.comm.size) if r != source), key=lambda r: self.rates[r])
                self.comm.barrier()
                rate = 0.0
                if self.number == source:
                    place = (".".join(str(int(part)) for part in ports[to][:4]), int(ports[to][4]))
                    send(place, RAW_SECONDS)
                elif self.number == to:
                    rate = receive(server)
                found.append(float(self.of_all(rate).max()))
        return found

    def gloo(self) -> dict[str, Any]:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            return {"absent": str(error)}
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=self.number, world_size=self.comm.size)
        x = torch.full((self.count,), float(self.number + 1))

        def call() -> None:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)

        found = self.timed(call)
        found["right"] = bool((x == self.comm.size).all())
        found["torch"] = torch.__version__
        dist.destroy_process_group()
        return found


def send(place: tuple[str, int], seconds: float) -> None:
    block = bytes(1 << 20)
    with socket.create_connection(place, timeout=20) as s:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            s.sendall(block)


def receive(server: socket.socket) -> float:
    """Bytes a second. The first fifth of a second, in which the connection gets up to speed, is left out."""
    server.settimeout(20)
    s, _ = server.accept()
    buffer = bytearray(1 << 20)
    with s:
        s.settimeout(20)
        begin = time.monotonic() + 0.2
        while time.monotonic() < begin:
            s.recv_into(buffer)
        begin, end, got = time.monotonic(), time.monotonic(), 0
        while n := s.recv_into(buffer):
            got += n
            end = time.monotonic()
    return got / max(end - begin, 1e-9)


def work(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text())
    rank = Rank(task)
    found = {what: getattr(rank, what)() for what in task["what"]}
    (folder / f"result.{rank.number}.json").write_text(json.dumps(found))
    rank.comm.destroy()


# ---- the driver ----------------------------------------------------------------------------------------------------


def run_fleet(name: str, shares: dict[str, float], nbytes: int, repeat: int, gloo: bool) -> dict[str, Any]:
    rates = {island: share * UNIT for island, share in shares.items()}
    links = {island: {"bridge_mbps": rate, **(DEVICE if island != "cpu" else {})} for island, rate in rates.items()}
    what = ["raw", "isthmus", "equal", *(["gloo"] if gloo else [])]
    fleet, results = run(name, links, what, nbytes, repeat, SWITCHES)
    return judged(name, fleet, rates, nbytes, links, results)


def run(
    name: str, links: dict[str, Any], what: list[str], nbytes: int, repeat: int, switches: dict[str, str]
) -> tuple[str, list[dict[str, Any]]]:
    """Runs one rank on each island. Returns what each rank found, by the name of the function of Rank."""
    from isthmus import rehearse

    with tempfile.TemporaryDirectory(prefix="isthmus-bridge-") as text:
        folder = Path(text)
        (folder / "links.json").write_text(json.dumps(links))
        rates = {island: link.get("bridge_mbps", 0.0) for island, link in links.items()}
        task = {"folder": text, "rates": rates, "nbytes": nbytes, "repeat": repeat, "what": what}
        (folder / "task.json").write_text(json.dumps(task))
        fleet = ",".join(f"{island}:1" for island in links)
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", text]
        with rehearse.start(command, fleet, links=folder / "links.json", switches=switches) as job:
            ended = job.wait(PATIENCE_S)
        if any(end.returncode for end in ended):
            said = "\n".join(f"rank {end.rank}, status {end.returncode}: {end.stderr[-1500:]}" for end in ended)
            raise SystemExit(f"bridge: {name}: a rank failed\n{said}")
        return fleet, [json.loads((folder / f"result.{rank}.json").read_text()) for rank in range(len(ended))]


def run_overlap(nbytes: int, repeat: int) -> dict[str, Any]:
    rate = {"copy_out_gbps": UNIT / 1000, "copy_in_gbps": UNIT / 1000, "bridge_mbps": UNIT}
    switches = {**SWITCHES, "QUEUES": "4"}  # hardware queues: in one queue no two things run side by side
    fleet, results = run("overlap", dict.fromkeys(OVERLAPPED, rate), ["isthmus"], nbytes, repeat, switches)
    found = results[0]["isthmus"]
    busy = dict.fromkeys(("copies out", "copies in", "interface out", "interface in"), nbytes / (UNIT * 1e6))
    least, most = max(busy.values()), sum(busy.values())
    return {
        "rehearsal": WHAT,
        "fleet": fleet,
        "links": rate,
        "switches": switches,
        "bytes": nbytes,
        "busy_seconds_of_a_rank": busy,
        "isthmus": {key: value for key, value in found.items() if key not in ("plan_predicts", "unknown")},
        "overlap": (most - found["median"]) / (most - least),
        "right": all(one["isthmus"]["right"] for one in results),
        "void": found["void"],
    }


def hand_offs(rounds: int) -> tuple[list[str], float]:
    """The chain of hand-offs: who waits at each and how, and the chain's median time in seconds."""
    command = [sys.executable, str(ROOT / "bench" / "hand_offs.py"), "--rounds", str(rounds)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if ended.returncode:
        raise SystemExit(f"bridge: hand_offs.py ended with status {ended.returncode}\n{ended.stderr[-1500:]}")
    found = json.loads(ended.stdout)
    return found["hand_offs"], statistics.median(found["seconds"])


def run_latency(turns: int) -> dict[str, Any]:
    switches = {**SWITCHES, "QUEUES": "4"}
    found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    chain = []
    for _ in range(turns):
        waits, median = hand_offs(SMALL_CALLS)
        chain.append(median)
        for which, more in (("without", {}), ("with", {"GATE_US": str(GATE_US)})):
            islands: dict[str, Any] = dict.fromkeys(OVERLAPPED, {})
            fleet, results = run("latency", islands, ["small"], 8, SMALL_CALLS, {**switches, **more})
            found[which].append(results[0]["small"])
    medians = {which: [one["median"] for one in each] for which, each in found.items()}
    middle = {which: statistics.median(each) for which, each in medians.items()}
    keys = ("cpu_share", "machine_busy_share", "others_share")
    shares = {which: {key: statistics.mean(one[key] for one in each) for key in keys} for which, each in found.items()}
    void = shares["with"]["cpu_share"] > MOST_BUSY
    return {
        "rehearsal": WHAT,
        "fleet": fleet,
        "switches": switches,
        "gate_us": GATE_US,
        "bytes": 8,
        "calls": SMALL_CALLS,
        "p50_seconds": medians,
        "hand_offs": {"waits": waits, "p50_seconds": chain},
        # The target is that of the quickest turn: a disturbed chain must not move the target.
        "most_seconds": TARGETS["gates"] * GATE_US / 1e6 + min(chain),
        "gates": (middle["with"] - middle["without"]) / (GATE_US / 1e6),
        # Without the latency a call is only work, and has no target.
        "processors": {which: {**share, "void": void and which == "with"} for which, share in shares.items()},
        "right": all(one["right"] for each in found.values() for one in each),
        "void": void,
    }


def judged(
    name: str, fleet: str, rates: dict[str, float], nbytes: int, links: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    wire = [rate * 1e6 for rate in rates.values()]
    order = sorted(range(len(wire)), key=lambda i: -wire[i])
    fastest = [order[1] if i == order[0] else order[0] for i in range(len(wire))]
    raw = results[0]["raw"]
    # A connection shows the rate of the slower of its two interfaces. More cannot be told of the fastest island's interface.
    part = [got / min(wire[i], wire[fastest[i]]) for i, got in enumerate(raw)]
    goodput = [b * min(p, 1.0) for b, p in zip(wire, part, strict=True)]
    ours, gloo = results[0]["isthmus"], results[0].get("gloo", {"absent": "left out"})
    least = least_time(nbytes, wire)
    least_goodput = least_time(nbytes, goodput)
    predictions = [one["isthmus"]["plan_predicts"] for one in results]
    whole = all(p is not None for p in predictions)
    predicted = max((p["seconds"] for p in predictions), default=0.0) if whole else None
    row: dict[str, Any] = {
        "rehearsal": WHAT,
        "bridges": name,
        "fleet": fleet,
        "links": links,
        "switches": SWITCHES,
        "bytes": nbytes,
        "least_seconds": least,
        "least_seconds_at_goodput": least_goodput,
        "goodput": {"bytes_per_second": raw, "part_of_interface": part},
        "isthmus": {key: value for key, value in ours.items() if key not in ("plan_predicts", "unknown")},
        "ratio": ours["median"] / least,
        "ratio_at_goodput": ours["median"] / least_goodput,
        "right": all(one[who].get("right", True) for one in results for who in ("isthmus", "equal", "gloo") if who in one),
        "isthmus_with_equal_shares": results[0]["equal"],
        "predicted": {"seconds": predicted, "by_rank": predictions},
        "predicted_ratio": predicted / least if predicted else None,
        "gloo": gloo,
        "ring_least_seconds": ring_time(nbytes, wire),
        "void": ours["void"],
    }
    if not whole:
        row["predicted"]["unknown"] = next((one["isthmus"]["unknown"] for one in results if one["isthmus"]["unknown"]), "")
    return row


def processors(found: dict[str, Any]) -> str:
    """Who had the processors while the operation was timed."""
    shares = f"the ranks had {found['cpu_share']:.0%} of the processors, all {found['machine_busy_share']:.0%}"
    return shares + ("  VOID" if found["void"] else "")


def warn(title: str, found: dict[str, Any]) -> None:
    if found["others_share"] > MOST_OTHERS:
        print(f"rehearsal  WARNING: others had {found['others_share']:.0%} of the processors meanwhile: {title}")


def show(row: dict[str, Any]) -> None:
    ours, gloo = row["isthmus"], row["gloo"]

    def line(title: str, seconds: float | None, more: str = "") -> None:
        text = "unknown" if seconds is None else f"{seconds * 1e3:8.1f} ms {seconds / row['least_seconds']:6.3f} T*"
        print(f"rehearsal  {title:34} {text} {more}".rstrip())

    def measured(title: str, found: dict[str, Any]) -> None:
        line(title, found["median"], f"{found['min'] * 1e3:.1f} to {found['max'] * 1e3:.1f} ms, {processors(found)}")
        warn(title, found)

    size = f"{row['bytes'] >> 20} MiB of float32"
    print(f"rehearsal  bridges {row['bridges']} of {UNIT:g} MB/s: {row['fleet']}, all_reduce of {size}")
    line("T*, at the interfaces' rates", row["least_seconds"])
    parts = ", ".join(f"{p:.1%}" for p in row["goodput"]["part_of_interface"])
    line("T*, at a TCP connection's rates", row["least_seconds_at_goodput"], f"it gets {parts}")
    measured("isthmus, median", ours)
    line("isthmus, last call, by explain()", ours["last"] and ours["last"]["seconds"], "rank 0's own")
    line("isthmus, predicted", row["predicted"]["seconds"], row["predicted"].get("unknown", "slowest rank"))
    measured("isthmus with equal shares, median", row["isthmus_with_equal_shares"])
    line("ring of equal parts, least", row["ring_least_seconds"])
    if "absent" in gloo:
        line("gloo's ring, median", None, gloo["absent"])
    else:
        measured("gloo's ring, median", gloo)
    for title, ratio, target, void in (
        ("by the clock", row["ratio"], TARGETS["clock"], row["void"]),
        ("by the cost model", row["predicted_ratio"], TARGETS["predicted"], False),
    ):
        word = "unknown" if ratio is None else "VOID" if void else "reached" if ratio <= target else "NOT reached"
        print(f"rehearsal  {title}: {'-' if ratio is None else f'{ratio:.3f}'} of T*, target {target}: {word}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def show_overlap(row: dict[str, Any]) -> None:
    ours, busy = row["isthmus"], row["busy_seconds_of_a_rank"]
    print(f"rehearsal  overlap: {row['fleet']}, all_reduce of {row['bytes'] >> 20} MiB of float32, all of {UNIT:g} MB/s")
    print(f"rehearsal  each of {', '.join(busy)} is busy for {max(busy.values()) * 1e3:.1f} ms")
    spread = f"{ours['min'] * 1e3:.1f} to {ours['max'] * 1e3:.1f} ms"
    print(f"rehearsal  isthmus, median {ours['median'] * 1e3:.1f} ms ({spread}), {processors(ours)}")
    warn("overlap", ours)
    word = "VOID" if row["void"] else "reached" if row["overlap"] >= TARGETS["overlap"] else "NOT reached"
    print(f"rehearsal  overlap {row['overlap']:.3f}, target {TARGETS['overlap']}: {word}")
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
    print(f"rehearsal  a call with that latency takes longer by {row['gates']:.2f} gates than without")
    middle = statistics.median(row["p50_seconds"]["with"])
    word = "VOID" if row["void"] else "reached" if quick_enough(row) else "NOT reached"
    most = f"{row['most_seconds'] * 1e6:.0f} us ({TARGETS['gates']:g} gates and the hand-offs alone, in their quickest turn)"
    print(f"rehearsal  p50 {middle * 1e6:.0f} us, target {most}: {word}")
    if not row["right"]:
        print("rehearsal  a result was WRONG")
    print("rehearsal", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="size of the message (64)")
    parser.add_argument("--repeat", type=int, default=5, help="timed repetitions (5)")
    parser.add_argument("--quick", action="store_true", help="only that it runs: one fleet, one turn of latency, no Gloo")
    parser.add_argument("--out", type=Path, help="the file of results (bench/results/bridge.json; with --quick none)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return 0
    if not 1 <= args.mib <= 256 or not 1 <= args.repeat <= 100:
        parser.error("--mib must be from 1 to 256, --repeat from 1 to 100")
    from isthmus import Error, __version__

    print(f"rehearsal  {WHAT}; no figure below is a measurement of a device or a network card")
    if args.quick:
        print("rehearsal  quick: it shows that this runs; no target counts, but every result must be right")
    load = os.getloadavg()[0]
    os.environ.setdefault("ISTHMUS_TIMEOUT", "30")  # the ranks'
    fleets = list(FLEETS.items())[: 1 if args.quick else None]
    try:
        rows = [run_fleet(name, shares, args.mib << 20, args.repeat, not args.quick) for name, shares in fleets]
        overlap = run_overlap(args.mib << 20, args.repeat)
        latency = run_latency(1 if args.quick else SMALL_TURNS)
    except Error as error:
        print(f"bridge: {error}", file=sys.stderr)
        return 2
    for row in rows:
        show(row)
    show_overlap(overlap)
    show_latency(latency)
    document = {
        "rehearsal": WHAT,
        "simulated": True,
        "isthmus": __version__,
        "command": f"python bench/bridge.py --mib {args.mib} --repeat {args.repeat}" + (" --quick" if args.quick else ""),
        "date": time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime()),
        "machine": {"processors": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release(), "load": load},
        "targets": TARGETS,
        "rows": rows,
        "overlap": overlap,
        "latency": latency,
    }
    out = args.out or (None if args.quick else ROOT / "bench" / "results" / "bridge.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    if not all(row["right"] for row in (*rows, overlap, latency)):
        return 1
    overlapped = overlap["overlap"] >= TARGETS["overlap"] and not overlap["void"]
    prompt = quick_enough(latency) and not latency["void"]
    return 0 if args.quick or (all(map(reached, rows)) and overlapped and prompt) else 1


def quick_enough(row: dict[str, Any]) -> bool:
    return bool(statistics.median(row["p50_seconds"]["with"]) <= row["most_seconds"])


def reached(row: dict[str, Any]) -> bool:
    predicted = row["predicted_ratio"]
    near = row["ratio"] <= TARGETS["clock"] and predicted is not None and predicted <= TARGETS["predicted"]
    return bool(near and row["right"] and not row["void"])


if __name__ == "__main__":
    sys.exit(main())
