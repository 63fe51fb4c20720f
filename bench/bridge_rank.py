"""One rank of bridge.py: times what its task says, and leaves result.RANK.json in the task's folder."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tests")]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
MOST_BUSY = 0.5  # the part of all processors that the ranks may use
RAW_SECONDS = 0.6  # how long one plain transfer takes
EQUAL_PORT = 29700  # the port of the second rendezvous
INTERFACE = "eth0"  # of every host that isthmus._hosts makes
WAYS = ("copies out", "copies in", "interface out", "interface in")


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


def crossed() -> tuple[int, int]:
    """Bytes that this host's interface has sent and received, with all headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            words = numbers.split()
            return int(words[8]), int(words[0])
    return 0, 0


class Engines:
    """What the simulated device has copied, as its own clock says; nothing on a rank of the host."""

    def __init__(self, on_host: bool) -> None:
        self.library = None if on_host else ctypes.CDLL("librehearsal.so")
        if self.library:
            self.library.rehearsal_busy.restype = ctypes.c_ulong

    def reset(self) -> None:
        if self.library:
            self.library.rehearsal_reset_calls()

    def seconds(self) -> tuple[float, float]:
        """For which the engines that copy out, and in, were at work."""
        return tuple(self.library.rehearsal_busy(out) / 1e9 for out in (1, 0)) if self.library else (0.0, 0.0)  # type: ignore[return-value]


class Rank:
    def __init__(self, task: dict[str, Any]) -> None:
        import isthmus
        from devices import DeviceArray, on_host

        self.task = task
        self.number = int(os.environ["ISTHMUS_RANK"])
        self.islands: list[str] = task["islands"]  # by rank
        self.rates = {name: rate * 1e6 for name, rate in task["rates"].items()}  # by island
        path = Path(task["folder"]) / f"profile.{self.number}.json"
        self.unknown = "no bridge has a rate, or none that matters"
        if all(self.rates.values()):
            self.unknown = self.write_profile(path)
        self.comm = isthmus.init(settings=None if self.unknown else {"PROFILE": str(path)})
        self.block = max(1, task["nbytes"] // 4 // self.comm.size)  # elements
        self.count = self.block * self.comm.size if task["nbytes"] > 64 else task["nbytes"] // 4
        self.on_host = on_host()
        self.engines = Engines(self.on_host)
        self.make: Callable[[Any], Any] = (lambda host: host) if self.on_host else DeviceArray.of
        self.x = self.make(np.full(self.count, self.number + 1, np.float32))

    def write_profile(self, path: Path) -> str:
        """Writes what `isthmus tune` finds, rank after rank, with the rank's part of the interface's rate as TCP's.

        Where the task declares the rate of copies nothing is measured: it takes minutes where copies are slow.
        Or returns why not.
        """
        import fcntl

        import isthmus
        from isthmus.cli import tune

        if copies := self.task.get("copies"):
            device = os.environ["ISTHMUS_DEVICE"].partition(":")[0]
            names = [f"{device}:{i}/{way}" for i in range(8) for way in ("device_to_host", "host_to_device")]
            entries = [tune.entry(name, [copies], "not measured: declared") for name in names]
            profile = {
                "schema": 1,
                "isthmus": isthmus.__version__,
                "host": os.uname().nodename,
                "date": "",
                "entries": entries,
            }
        else:
            with open(path.with_name("lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    profile = tune.measure(0.6)
                except Exception as error:
                    return f"rank {self.number} has no profile: {error}"
        island = self.islands[self.number]
        rate = self.rates[island] / self.islands.count(island)
        entries = [entry for entry in profile["entries"] if entry["name"] != "tcp_loopback"]
        entries.append(tune.entry("tcp_loopback", [rate], "not measured: the declared rate of the shaped interface"))
        path.write_text(json.dumps({**profile, "simulated": True, "entries": entries}))
        return ""

    def of_all(self, *values: float) -> np.ndarray[Any, Any]:
        return np.asarray(self.comm.all_gather(np.array(values, np.float64))).reshape(self.comm.size, len(values))

    def timed(self, call: Any) -> dict[str, Any]:
        """The time from the first rank's begin to the last rank's end, by one clock; the ranks' parts of the processors; and
        how long this rank's engines were at work, and what its interface has carried, in the mean of a repetition.
        """
        call()
        seconds = []
        self.comm.barrier()
        since = Spent.now()
        work, carried = np.zeros(2), np.zeros(2)
        for _ in range(self.task["repeat"]):
            self.comm.barrier()
            self.engines.reset()
            before = crossed()
            begin = time.monotonic()
            call()
            spans = self.of_all(begin, time.monotonic())
            work += self.engines.seconds()
            carried += np.subtract(crossed(), before)
            seconds.append(float(spans[:, 1].max() - spans[:, 0].min()))
        repeat = self.task["repeat"]
        return {
            "median": statistics.median(seconds),
            "min": min(seconds),
            "max": max(seconds),
            "seconds": seconds,
            "engine_seconds": dict(zip(WAYS[:2], (work / repeat).tolist(), strict=True)),
            "interface_bytes": dict(zip(WAYS[2:], (carried / repeat).tolist(), strict=True)),
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

    def host(self, array: Any) -> Any:
        return array if self.on_host else array.get()

    def right(self) -> bool:
        return bool((self.host(self.x) == self.comm.size).all())

    def explained(self, found: dict[str, Any], collective: str, count: int) -> dict[str, Any]:
        said = self.comm.explain(collective, count=count, op="max")
        return found | {
            "explain": str(said),
            "plan_predicts": said.data.get("predicted"),
            "last": said.data.get("last"),
            "unknown": self.unknown,
        }

    def all_reduce(self) -> dict[str, Any]:
        found = self.timed(lambda: self.comm.all_reduce(self.x, "max"))
        return self.explained(found | {"right": self.right()}, "all_reduce", self.count)

    def _blocks(self, collective: str, given: int, got: int, good: Callable[[Any], bool]) -> dict[str, Any]:
        x = self.make(np.full(given, self.number + 1, np.float32))
        out = self.make(np.zeros(got, np.float32))
        calls: dict[str, Callable[[], object]] = {
            "reduce_scatter": lambda: self.comm.reduce_scatter(x, "max", out),
            "all_gather": lambda: self.comm.all_gather(x, out),
            "all_to_all": lambda: self.comm.all_to_all(x, out),
        }
        found = self.timed(calls[collective])
        return self.explained(found | {"right": good(self.host(out))}, collective, self.block)

    def _everybodys(self, out: Any) -> bool:
        blocks = out.reshape(self.comm.size, self.block)
        return all(bool((block == rank + 1).all()) for rank, block in enumerate(blocks))

    def reduce_scatter(self) -> dict[str, Any]:
        size = self.comm.size
        return self._blocks("reduce_scatter", self.count, self.block, lambda out: bool((out == size).all()))

    def all_gather(self) -> dict[str, Any]:
        return self._blocks("all_gather", self.block, self.count, self._everybodys)

    def all_to_all(self) -> dict[str, Any]:
        return self._blocks("all_to_all", self.count, self.count, self._everybodys)

    def behind(self) -> dict[str, Any]:
        """One all_reduce; and, of the same bytes, several that are called behind each other, each on an array of its own."""
        found: dict[str, Any] = {}
        for name, parts in {"one": [1.0], **self.task["parts"]}.items():
            arrays = [self.make(np.full(int(self.count * part), self.number + 1, np.float32)) for part in parts]

            def call(arrays: list[Any] = arrays) -> None:
                for work in [self.comm.all_reduce(array, "max", async_op=True) for array in arrays]:
                    work.wait()

            found[name] = self.timed(call)
            found[name]["right"] = all(bool((self.host(array) == self.comm.size).all()) for array in arrays)
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
        """The all_reduce with equal shares for all islands, whatever the rates."""
        import isthmus

        settings = {"BRIDGE_RATES": ",".join(f"{island}:1" for island in self.rates)}
        address = f"{os.environ['MASTER_ADDR']}:{EQUAL_PORT}"
        with isthmus.init(self.number, self.comm.size, address=address, name="equal", settings=settings) as comm:
            found = self.timed(lambda: comm.all_reduce(self.x, "max"))
        found["right"] = self.right()
        return found

    def raw(self) -> dict[str, list[float]]:
        """Bytes a second of one TCP connection from each island to the fastest other island, one island after the other.

        Both what the program gets, and what the interface carries, with all headers.
        """
        with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 9))
            address = [int(part) for part in probe.getsockname()[0].split(".")]
            ports = self.of_all(*address, server.getsockname()[1])
            first = {island: self.islands.index(island) for island in self.rates}  # the rank that does it
            payload, wire = [], []
            for island, source in first.items():
                to = first[max((other for other in self.rates if other != island), key=lambda other: self.rates[other])]
                self.comm.barrier()
                rates = (0.0, 0.0)
                if self.number == source:
                    place = (".".join(str(int(part)) for part in ports[to][:4]), int(ports[to][4]))
                    send(place, RAW_SECONDS)
                elif self.number == to:
                    rates = receive(server)
                found = self.of_all(*rates).max(axis=0)
                payload.append(float(found[0]))
                wire.append(float(found[1]))
        return {"payload": payload, "wire": wire}

    def gloo(self) -> dict[str, Any]:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            return {"absent": str(error)}
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
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


def receive(server: socket.socket) -> tuple[float, float]:
    """Bytes a second, without headers and with them.

    The first fifth of a second, in which the connection gets up to speed, is left out.
    """
    server.settimeout(20)
    s, _ = server.accept()
    buffer = bytearray(1 << 20)
    with s:
        s.settimeout(20)
        begin = time.monotonic() + 0.2
        while time.monotonic() < begin:
            s.recv_into(buffer)
        begin, end, got, before = time.monotonic(), time.monotonic(), 0, crossed()[1]
        while n := s.recv_into(buffer):
            got += n
            end = time.monotonic()
        wire = crossed()[1] - before
    took = max(end - begin, 1e-9)
    return got / took, wire / took


def work(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text())
    rank = Rank(task)
    found = {what: getattr(rank, what)() for what in task["what"]}
    (folder / f"result.{rank.number}.json").write_text(json.dumps(found))
    rank.comm.destroy()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
