"""What an all_to_all costs that goes as messages, beside one that goes as one plan; writes bench/results/exchange.json.

    python bench/exchange.py            # a minute or two
    python bench/exchange.py --quick    # shows that the program runs, and measures little

The benchmark is a rehearsal: devices are simulated, and no figure is a measurement of a vendor's hardware. Two ranks of
NVIDIA's and two of AMD's are two islands on this machine. Between the islands is shared memory, then TCP.

- "messages": ncclAlltoAll through the front doors. Isthmus carries the communicator, and makes a group of sends and receives
  of the call.
- "plan": all_to_all of isthmus.h (from Python), on a communicator of the same ranks.

The two take turns, and which is first changes each time. A time is from the first rank's call to the end of the last rank's
stream, by one clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "python"), str(ROOT / "tests")]

from circumstances import circumstances  # noqa: E402

FLEET = "nvidia:2,amd:2"
# A simulation's meanness uses processors. The timed work needs them, so the meanness is switched off.
SWITCHES = {"QUIET": "1", "JITTER_US": "0", "SCRIBBLE": "0"}
BRIDGES = ("shm", "tcp")
SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24]  # bytes that a rank sends, its own block with them
DOORS = {"nvidia": ("libnccl.so.2", "NCCL"), "amd": ("librccl.so.1", "RCCL")}
CARRIED = "Isthmus carries the communicator"
PATIENCE_S = 300.0
UINT8 = 1  # NCCL's number
WHAT = "rehearsal: simulated devices of NVIDIA and AMD, two ranks each, on one machine"


# ---- a rank --------------------------------------------------------------------------------------------------------


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


class Door:
    """A communicator through the front door of this rank's vendor."""

    def __init__(self, path: Path, comm: Any) -> None:
        self.library = ctypes.CDLL(str(path))
        made = UniqueId()
        if comm.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(made))
        all_ids = np.asarray(comm.all_gather(np.frombuffer(bytes(made), np.uint8).copy())).reshape(comm.size, -1)
        self.handle = ctypes.c_void_p()
        shared = UniqueId.from_buffer_copy(all_ids[0].tobytes())
        self.call("ncclCommInitRank", ctypes.byref(self.handle), comm.size, shared, comm.rank)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            self.library.ncclGetLastError.restype = ctypes.c_char_p
            raise SystemExit(f"{name} gave {code}: {self.library.ncclGetLastError(None).decode()}")

    def all_to_all(self, x: Any, out: Any, count: int, stream: int) -> None:
        addresses = ctypes.c_void_p(x.address), ctypes.c_void_p(out.address)
        self.call("ncclAlltoAll", *addresses, ctypes.c_size_t(count), UINT8, self.handle, ctypes.c_void_p(stream))

    def close(self) -> None:
        self.call("ncclCommDestroy", self.handle)


class Exchanges:
    """The buffers of one size, and the two ways to exchange them."""

    def __init__(self, comm: Any, door: Door, nbytes: int, stream: int) -> None:
        from devices import DeviceArray

        self.comm, self.door, self.nbytes, self.stream = comm, door, nbytes, stream
        self.block = nbytes // comm.size
        self.x = DeviceArray.of(np.concatenate([self.content(comm.rank, to) for to in range(comm.size)]))
        self.out = DeviceArray.of(np.zeros(nbytes, np.uint8))
        self.expected = np.concatenate([self.content(source, comm.rank) for source in range(comm.size)])

    def content(self, source: int, to: int) -> np.ndarray[Any, Any]:
        return ((np.arange(self.block) + 31 * source + 7 * to) % 251).astype(np.uint8)

    def messages(self) -> None:
        self.door.all_to_all(self.x, self.out, self.block, self.stream)

    def plan(self) -> Any:
        return self.comm.all_to_all(self.x, self.out, async_op=True, stream=self.stream)

    def timed(self, call: Callable[[], Any]) -> float:
        """Seconds, the same on all ranks."""
        from devices import vendor

        self.comm.barrier()
        begin = time.monotonic()
        work = call()
        vendor().synchronize(self.stream)
        end = time.monotonic()
        if work:
            work.wait()
        spans = np.asarray(self.comm.all_gather(np.array([begin, end]))).reshape(self.comm.size, 2)
        return float(spans[:, 1].max() - spans[:, 0].min())

    def right(self, call: Callable[[], Any]) -> bool:
        self.out.set(np.zeros(self.nbytes, np.uint8))
        self.timed(call)
        return bool((self.out.get() == self.expected).all())

    def measure(self, repeat: int) -> dict[str, Any]:
        ways: dict[str, Callable[[], Any]] = {"messages": self.messages, "plan": self.plan}
        right = all([self.right(call) for call in ways.values()])
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(repeat + 2):
            for name in sorted(ways, reverse=bool(turn % 2)):
                took = self.timed(ways[name])
                if turn >= 2:  # warm
                    seconds[name].append(took)
        return {"bytes": self.nbytes, "right": right, "seconds": seconds}


def choose_library() -> Path:
    """The vendor's library for the door and for isthmus.h alike: a process has one of the kind. Returns the door."""
    import isthmus
    from isthmus import rehearse

    vendor = "nvidia" if os.environ["ISTHMUS_DEVICE"].startswith("cuda") else "amd"
    file, name = DOORS[vendor]
    real = str(rehearse.folder() / vendor / file)
    os.environ |= {f"ISTHMUS_REAL_{name}": real, "ISTHMUS_CCL_LIBRARY": real}
    return Path(isthmus.__file__).parent / "interpose" / file


def work(folder: Path) -> None:
    import isthmus
    from devices import vendor

    task = json.loads((folder / "task.json").read_text())
    door_path = choose_library()
    comm = isthmus.init()
    vendor()
    stream = vendor().stream()
    door = Door(door_path, comm)
    rows = [Exchanges(comm, door, nbytes, stream).measure(task["repeat"]) for nbytes in task["sizes"]]
    (folder / f"result.{comm.rank}.json").write_text(json.dumps(rows))
    comm.barrier()
    door.close()
    comm.destroy()


# ---- all of them ---------------------------------------------------------------------------------------------------


def run(bridge: str, sizes: list[int], repeat: int) -> list[dict[str, Any]]:
    from isthmus import rehearse

    with tempfile.TemporaryDirectory(prefix="isthmus-exchange-") as text:
        folder = Path(text)
        (folder / "task.json").write_text(json.dumps({"sizes": sizes, "repeat": repeat}))
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", text]
        with rehearse.start(command, FLEET, bridge=bridge, switches=SWITCHES) as job:
            ended = job.wait(PATIENCE_S)
        if any(end.returncode or CARRIED not in end.stderr for end in ended):
            said = "\n".join(f"rank {end.rank}, status {end.returncode}: {end.stderr[-1500:]}" for end in ended)
            raise SystemExit(f"exchange: {bridge}: a rank failed, or Isthmus did not carry the communicator\n{said}")
        found = [json.loads((folder / f"result.{rank}.json").read_text()) for rank in range(len(ended))]
    rows = found[0]  # the times are of all ranks
    for number, row in enumerate(rows):
        row["right"] = all(each[number]["right"] for each in found)
    return [judged(bridge, row) for row in rows]


def judged(bridge: str, row: dict[str, Any]) -> dict[str, Any]:
    def figures(seconds: list[float]) -> dict[str, Any]:
        low, middle, high = statistics.quantiles(seconds, n=4)
        return {"median": middle, "quartiles": [low, high], "min": min(seconds), "max": max(seconds), "seconds": seconds}

    messages, plan = row["seconds"]["messages"], row["seconds"]["plan"]
    low, middle, high = statistics.quantiles([m / p for m, p in zip(messages, plan, strict=True)], n=4)
    return {
        "bridge": bridge,
        "bytes": row["bytes"],
        "right": row["right"],
        "messages": figures(messages),
        "plan": figures(plan),
        "messages_over_plan": {"median": middle, "quartiles": [low, high]},
    }


def show(row: dict[str, Any]) -> None:
    def text(found: dict[str, Any]) -> str:
        low, high = found["quartiles"]
        return f"{found['median'] * 1e3:9.3f} ms ({low * 1e3:.3f} to {high * 1e3:.3f})"

    ratio = row["messages_over_plan"]
    low, high = ratio["quartiles"]
    print(
        f"rehearsal  {row['bridge']} {row['bytes'] >> 10:6} KiB a rank   messages {text(row['messages'])}"
        f"   plan {text(row['plan'])}   ratio {ratio['median']:.2f} ({low:.2f} to {high:.2f})"
        + ("" if row["right"] else "   WRONG")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=21, help="timed turns of each size (21)")
    parser.add_argument("--quick", action="store_true", help="only that it runs: two sizes, four turns")
    parser.add_argument("--out", type=Path, help="the file of results (bench/results/exchange.json; with --quick none)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return 0
    if not 2 <= args.repeat <= 1000:
        parser.error("--repeat must be from 2 to 1000")
    from isthmus import __version__

    os.environ["ISTHMUS_LOG"] = "info"  # the ranks': their log says who carries the communicator
    os.environ.setdefault("ISTHMUS_TIMEOUT", "60")
    print(f"{WHAT}; no figure below is a measurement of a device; medians, and the quartiles in brackets")
    made = circumstances(f"python bench/exchange.py --repeat {args.repeat}" + (" --quick" if args.quick else ""))
    sizes, repeat = ([1 << 10, 1 << 20], 4) if args.quick else (SIZES, args.repeat)
    rows = [row for bridge in BRIDGES for row in run(bridge, sizes, repeat)]
    for row in rows:
        show(row)
    document = {
        "rehearsal": WHAT,
        "simulated": True,
        "isthmus": __version__,
        **made,
        "fleet": FLEET,
        "switches": SWITCHES,
        "rows": rows,
    }
    out = args.out or (None if args.quick else ROOT / "bench" / "results" / "exchange.json")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
