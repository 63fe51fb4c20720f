"""Isthmus on a real GPU against the GPU's own copies, ProcessGroupGloo and a relay; writes bench/results/gpu.json.

    python bench/gpu.py                              # one NVIDIA or AMD GPU and a PyTorch that uses it; some minutes
    python bench/gpu.py --check                      # the same, and fails where a target is missed
    python bench/gpu.py --quick                      # fewer sizes
    python bench/gpu.py --rehearse nvidia --quick    # the same on a simulated device: shows that the program runs

Ranks are threads of one process: processes that share a GPU would take turns on it. "gpu,gpu,cpu" is two ranks on device 0
and one rank on host memory. The two ranks are islands of their own, because libraries serve no two ranks on one GPU. In each
round every contender makes the same calls on the same tensors. The order moves on by one from round to round:

isthmus  device tensors, on each rank's own stream
gloo     torch's ProcessGroupGloo with the same tensors, where Gloo takes tensors of this device; Gloo sends no such tensors
relay    the code that people write by hand today: t.cpu(), Gloo on the host, t.copy_(...)

Calls are made behind each other, as many as fill --block seconds. A time is that of all of them over their number: from the
barrier before the first one until the last rank's stream has come to the end of the last one.

The limits are measured in the same run: copies between the device and pinned memory (out, in, and both at once); what all
threads that reduce for these ranks reduce at once (`isthmus tune`); and what the host's memory moves. All GPU ranks use one
GPU. So a moved byte goes out once, and goes in once for each rank that receives it. An all_reduce of G GPU ranks takes G
copies out and G copies in. What only moves is compared with the copies, and with what memory moves of ranks on the CPU.

With --check the exit status is 3 where a target is missed, or where what it is for was not measured.

The device has as many hardware queues as the driver gives every program. --connections N asks for another number.

The last row times matrix products on the GPU, with a broadcast beside them and without.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench")]

from circumstances import circumstances  # noqa: E402

SIZES = (8, 4 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
QUICK_SIZES = (8, 64 << 10, 1 << 20)
CONTENDERS = ("isthmus", "gloo", "relay")
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv")
MISSED = 3  # exit status
BUCKETS, BUCKET_BYTES = 10, 25_000_000  # of a training step, behind each other, beside one call of all of them
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
CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES")  # each driver's word for the number of hardware queues
LARGE = 1 << 20  # from this size on Isthmus is to beat Gloo by the target
LIMIT_FROM = 16 << 20  # from this size on the limits' rates are to be reached
GEMM_BYTES = 256 << 20  # the size of the broadcast beside the matrix products
COPY_BYTES = 256 << 20
PATIENCE_S = 120.0  # how long a call may take
Call = Callable[[], object]


class Device:
    """The calls of torch's accelerator that this program needs, for any accelerator."""

    def __init__(self, vendor: str) -> None:
        import torch

        self.torch = torch
        if vendor:
            from isthmus import rehearsal_torch

            rehearsal_torch.register()
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if found is None:
            raise SystemExit("gpu: torch finds no GPU here; --rehearse nvidia runs the same on a simulated one")
        self.kind = found.type
        self.device = torch.device(self.kind, 0)
        self.simulated = self.kind == "rehearsal"
        module = getattr(torch, self.kind)
        self.name = module.get_device_name(0)
        self.module = module
        hip = getattr(torch.version, "hip", None)
        self.isthmus = {"nvidia": "cuda:0", "amd": "hip:0", "ascend": "acl:0"}[vendor or ("amd" if hip else "nvidia")]

    def stream(self) -> Any:
        return self.torch.Stream(device=self.device)

    @staticmethod
    def handle(stream: Any) -> int:
        return int(stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.native_handle)

    def on(self, stream: Any) -> Any:
        return self.module.stream(stream)


class View:
    """A tensor of the device as Isthmus takes arrays: by `__cuda_array_interface__`, whatever device torch calls it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 3,
            "strides": None,
        }


class Rank:
    """One rank: its tensors, its stream, its place with each contender."""

    def __init__(self, number: int, kinds: list[str], device: Device, unique_id: bytes, store: Any) -> None:
        import torch.distributed as dist

        import isthmus

        self.number, self.size, self.kind, self.device = number, len(kinds), kinds[number], device
        self.torch, self.dist = device.torch, dist
        self.on_gpu = self.kind == "gpu"
        self.stream = device.stream() if self.on_gpu else None
        self.comm = isthmus.init(
            number,
            self.size,
            unique_id=unique_id,
            island=f"{self.kind}{number}",
            timeout=PATIENCE_S,
            settings={"DEVICE": device.isthmus if self.on_gpu else "host"},
        )
        patience = datetime.timedelta(seconds=PATIENCE_S)
        prefixed = dist.PrefixStore("gloo", store)
        self.gloo_group = dist.ProcessGroupGloo(prefixed, number, self.size, timeout=patience)

    def here(self) -> Any:
        return self.device.on(self.stream) if self.on_gpu else contextlib.nullcontext()

    def tensor(self, count: int, value: float) -> Any:
        with self.here():
            place = self.device.device if self.on_gpu else "cpu"
            return self.torch.full((count,), value, dtype=self.torch.float32, device=place)

    def finish(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()

    # ---- the contenders ----------------------------------------------------------------------------------------------

    def call(self, contender: str, collective: str, x: Any, out: Any, **stream: Any) -> Call:
        """On the rank's stream, or of Isthmus' calls on another one or none (`stream`)."""
        if contender == "isthmus":
            return self._isthmus(collective, x, out, stream.get("stream", self.stream))
        return getattr(self, f"_{contender}")(collective, x, out)

    def _isthmus(self, collective: str, x: Any, out: Any, on: Any) -> Call:
        comm = self.comm
        stream = None if on is None else self.device.handle(on)
        a, b = (View(x), View(out)) if self.on_gpu else (x.numpy(), out.numpy())
        following, before = (self.number + 1) % self.size, (self.number - 1) % self.size

        # As calls of NCCL and of torch: the host goes on at once, and the stream has the order. A rank on the CPU has no
        # stream, so its call ends with the operation.
        more = {"stream": stream, "async_op": self.on_gpu}

        def send_recv() -> object:
            import isthmus

            with isthmus.group(async_op=self.on_gpu) as both:
                comm.send(a, following, stream=stream)
                comm.recv(b, before, stream=stream)
            return both.work if self.on_gpu else None

        table: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(a, "sum", a, **more),
            "broadcast": lambda: comm.broadcast(a, 0, **more),
            "all_gather": lambda: comm.all_gather(a, b, **more),
            "reduce_scatter": lambda: comm.reduce_scatter(a, "sum", b, **more),
            "send_recv": send_recv,
        }
        return table[collective]

    def _gloo_calls(self, collective: str, x: Any, out: Any) -> Call:
        group, dist = self.gloo_group, self.dist
        following, before = (self.number + 1) % self.size, (self.number - 1) % self.size

        def all_reduce() -> None:
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.SUM
            group.allreduce([x], options).wait()

        def broadcast() -> None:
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            group.broadcast([x], options).wait()

        def send_recv() -> None:
            sent, received = group.send([x], following, 0), group.recv([out], before, 0)
            sent.wait()
            received.wait()

        def reduce_scatter() -> None:  # gloo has none: what it offers in its place
            all_reduce()
            out.copy_(x.view(self.size, -1)[self.number])

        pieces = [list(out.chunk(self.size))] if collective == "all_gather" else []
        table: dict[str, Call] = {
            "all_reduce": all_reduce,
            "broadcast": broadcast,
            "all_gather": lambda: group.allgather(pieces, [x]).wait(),
            "reduce_scatter": reduce_scatter,
            "send_recv": send_recv,
        }
        return table[collective]

    def _gloo(self, collective: str, x: Any, out: Any) -> Call:
        call = self._gloo_calls(collective, x, out)

        def on_stream() -> None:
            with self.here():
                call()

        return on_stream

    def _relay(self, collective: str, x: Any, out: Any) -> Call:
        if not self.on_gpu:
            return self._gloo_calls(collective, x, out)
        wide = out.numel()

        def relayed() -> None:
            with self.here():
                there = x.cpu()
                result = there if collective in ("all_reduce", "broadcast") else self.torch.empty(wide)
                self._gloo_calls(collective, there, result)()
                (out if result is not there else x).copy_(result)

        return relayed

    def close(self) -> None:
        self.comm.destroy()


class Team:
    """The ranks' threads, which all do the same thing at the same time."""

    def __init__(self, kinds: list[str], device: Device) -> None:
        import torch.distributed as dist

        import isthmus

        self.kinds, self.device = kinds, device
        self.meeting = threading.Barrier(len(kinds))
        unique_id, store = isthmus.unique_id(), dist.HashStore()
        self.ranks: list[Rank] = [None] * len(kinds)  # type: ignore[list-item]

        def make(number: int) -> None:
            self.ranks[number] = Rank(number, kinds, device, unique_id, store)

        self.together(make)

    def together(self, work: Callable[[int], None]) -> None:
        """work(rank) on a thread for each rank; the first exception of any is raised here."""
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                work(number)
            except BaseException as error:
                if not isinstance(error, threading.BrokenBarrierError):
                    errors.insert(0, error)
                errors.append(error)
                self.meeting.abort()

        threads = [threading.Thread(target=one, args=(n,), name=f"rank {n}", daemon=True) for n in range(len(self.kinds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(8 * PATIENCE_S)
            if thread.is_alive():
                raise SystemExit(f"gpu: {thread.name} did not end within {8 * PATIENCE_S:.0f} s")
        if errors:
            self.meeting.reset()
            raise errors[0]

    def seconds(self, calls: list[Call], times: int) -> float:
        """Of one call, from the moment that all ranks begin until the last one's stream has ended."""
        import isthmus

        begins, ends = [0.0] * len(calls), [0.0] * len(calls)

        def work(number: int) -> None:
            rank, call = self.ranks[number], calls[number]
            rank.finish()
            self.meeting.wait()
            begins[number] = time.perf_counter()
            for _ in range(times):
                last = call()
            rank.finish()
            ends[number] = time.perf_counter()
            if isinstance(last, isthmus.Work):
                last.wait()  # raises if it has failed, which the stream does not tell

        self.together(work)
        return (max(ends) - min(begins)) / times

    def close(self) -> None:
        self.together(lambda number: self.ranks[number].close())


# ---- rows ------------------------------------------------------------------------------------------------------------


def lengths(collective: str, nbytes: int, ranks: int) -> tuple[int, int]:
    """Elements of what a rank gives and of what it gets, where nbytes are those of the larger."""
    count = max(1, nbytes // 4)
    part = max(1, count // ranks)
    return {"all_gather": (part, part * ranks), "reduce_scatter": (part * ranks, part)}.get(collective, (count, count))


def check(team: Team, contender: str, collective: str, nbytes: int) -> None:
    """Once a row and contender, on known numbers: small integers, so that every sum is exact."""
    ranks = len(team.kinds)
    count, wide = lengths(collective, nbytes, ranks)

    def work(number: int) -> None:
        rank = team.ranks[number]
        x = rank.tensor(count, float(number + 1))
        out = rank.tensor(wide, -1.0)
        rank.finish()
        team.meeting.wait()
        rank.call(contender, collective, x, out)()
        rank.finish()
        x, out = x.cpu(), out.cpu()
        before = (number - 1) % ranks + 1
        good = {
            "all_reduce": lambda: bool((x == ranks * (ranks + 1) / 2).all()),
            "broadcast": lambda: bool((x == 1).all()),
            "all_gather": lambda: all(bool((part == r + 1).all()) for r, part in enumerate(out.chunk(ranks))),
            "reduce_scatter": lambda: bool((out == ranks * (ranks + 1) / 2).all()),
            "send_recv": lambda: bool((out == before).all()),
        }[collective]()
        if not good:
            raise SystemExit(f"gpu: {contender}, {collective} of {count * 4} bytes: wrong numbers on rank {number}")

    team.together(work)


def time_row(team: Team, collective: str, nbytes: int, rounds: int, block: float, absent: dict[str, str]) -> dict[str, Any]:
    count, wide = lengths(collective, nbytes, len(team.kinds))
    contenders = [name for name in CONTENDERS if name not in absent]
    if collective == "send_recv" and "gloo" in contenders:
        contenders.remove("gloo")  # which takes device memory for the host's there, and ends the process
    tensors: list[tuple[Any, Any]] = []
    for rank in team.ranks:
        tensors.append((rank.tensor(count, 0.0), rank.tensor(wide, 0.0)))
    calls: dict[str, list[Call]] = {}
    times: dict[str, int] = {}
    for name in contenders:
        check(team, name, collective, nbytes)
        calls[name] = [rank.call(name, collective, *pair) for rank, pair in zip(team.ranks, tensors, strict=True)]
        once = min(team.seconds(calls[name], 1) for _ in range(2))
        times[name] = max(1, min(1000, int(block / max(once, 1e-9))))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for i in range(len(contenders)):
            name = contenders[(i + number) % len(contenders)]
            seconds[name].append(team.seconds(calls[name], times[name]))
    return {
        "collective": collective,
        "asked": nbytes,
        "bytes": 4 * max(count, wide),
        "ranks": ",".join(team.kinds),
        "calls": times,
        "seconds": seconds,
    }


def buckets(team: Team, number: int, nbytes: int, rounds: int) -> dict[str, Any]:
    """Seconds of all_reduces behind each other, and of one of all their bytes.

    No stream of the program's is behind a bucket, as in a training: torch's stream waits for a bucket when the program does.
    """
    import isthmus

    small = [[rank.tensor(nbytes // 4, 0.0) for _ in range(number)] for rank in team.ranks]
    large = [rank.tensor(number * nbytes // 4, 0.0) for rank in team.ranks]

    def behind_each_other(rank: Rank, tensors: list[Any]) -> Call:
        calls = [rank.call("isthmus", "all_reduce", x, x, stream=None) for x in tensors]

        def all_of_them() -> object:
            works = [call() for call in calls]
            for work in works:
                if isinstance(work, isthmus.Work):
                    work.wait()
            return None

        return all_of_them

    separate = [behind_each_other(rank, tensors) for rank, tensors in zip(team.ranks, small, strict=True)]
    whole = [rank.call("isthmus", "all_reduce", x, x) for rank, x in zip(team.ranks, large, strict=True)]
    found: dict[str, Any] = {"number": number, "bytes": nbytes, "separate": [], "whole": []}
    for _ in range(rounds + 1):
        found["separate"].append(team.seconds(separate, 1))
        found["whole"].append(team.seconds(whole, 1))
    return {**found, "separate": found["separate"][1:], "whole": found["whole"][1:]}


def copy_rates(device: Device, nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Bytes a second between the device and pinned memory: out, in, and each way while both go on."""
    torch = device.torch
    here = [torch.empty(nbytes, dtype=torch.uint8, device=device.device) for _ in range(2)]
    pinned = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=not device.simulated) for _ in range(2)]
    streams = [device.stream() for _ in range(2)]

    def run(out: bool, back: bool) -> float:
        for stream in streams:
            stream.synchronize()
        begin = time.perf_counter()
        if out:
            with device.on(streams[0]):
                pinned[0].copy_(here[0], non_blocking=True)
        if back:
            with device.on(streams[1]):
                here[1].copy_(pinned[1], non_blocking=True)
        for stream in streams:
            stream.synchronize()
        return nbytes / (time.perf_counter() - begin)

    found: dict[str, list[float]] = {"out": [], "in": [], "both": []}
    for _ in range(rounds + 1):
        found["out"].append(run(True, False))
        found["in"].append(run(False, True))
        found["both"].append(run(True, True))
    return {name: rates[1:] for name, rates in found.items()}


# One of them prints the samples of the rate at which it sums float32, and does so while the others do.
_REDUCES = """
import json, sys
from isthmus import _core
print("ready", flush=True)
sys.stdin.readline()
found = json.loads(_core.measure(float(sys.argv[1])))["entries"]
print(json.dumps(next(one["samples"] for one in found if one["name"] == "reduce_float32")))
"""


def reducers(ranks: int) -> int:
    """Threads that reduce for these ranks at once: each rank's own, and those of the pool (ISTHMUS_REDUCE_THREADS)."""
    asked = int(os.environ.get("ISTHMUS_REDUCE_THREADS", "-1"))
    share = os.cpu_count() or 1  # all ranks of the host are in this process
    helpers = asked if asked >= 0 else min(max(share - 2 * ranks, 0), min(max(share // 2, 3), 7))
    return ranks + helpers


def reduction_rate(threads: int, seconds: float = 2.0) -> float:
    """Bytes a second of sums that so many threads make together, all at the same time."""
    kept = {name: value for name, value in os.environ.items() if name != "ISTHMUS_DEVICE"}
    command = [sys.executable, "-c", _REDUCES, f"{seconds:g}"]
    jobs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept) for _ in range(threads)
    ]
    for job in jobs:
        assert job.stdout
        if job.stdout.readline() != "ready\n":
            raise SystemExit("gpu: a process that is to measure reductions has not begun")
    for job in jobs:
        assert job.stdin
        job.stdin.write("\n")
        job.stdin.flush()
    total = 0.0
    for job in jobs:
        said, _ = job.communicate(timeout=60 + 20 * seconds)
        if job.returncode:
            raise SystemExit(f"gpu: a process that measures reductions ended with status {job.returncode}")
        total += statistics.median(json.loads(said))
    return total


def memory_rate() -> float:
    """Bytes a second that copies of all processors read and write."""
    import numpy as np

    pairs = [(np.ones(8 << 20), np.zeros(8 << 20)) for _ in range(min(16, os.cpu_count() or 1))]  # 64 MiB each
    best = float("inf")
    for _ in range(5):
        threads = [threading.Thread(target=np.copyto, args=(to, source)) for source, to in pairs]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - begin)
    return sum(2 * source.nbytes for source, _ in pairs) / best


class Broadcasts:
    """Calls of all ranks, one behind the other, for as long as the block lasts; the first has begun when the block begins.
    An error of one is raised at the block's end."""

    def __init__(self, team: Team, calls: list[Call]) -> None:
        self.team, self.calls, self.number = team, calls, 0
        self._over, self._flags, self._go_on = threading.Event(), threading.Barrier(len(calls)), True
        self._error: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._together, daemon=True)

    def _work(self, number: int) -> None:
        import isthmus

        try:
            while True:
                if number == 0:
                    self._go_on = not self._over.is_set()
                self._flags.wait()  # all ranks make the same number of calls
                if not self._go_on:
                    return
                self._begun.set()
                made = self.calls[number]()
                self.team.ranks[number].finish()
                if isinstance(made, isthmus.Work):
                    made.wait()  # raises if it has failed, which the stream does not tell
                if number == 0:
                    self.number += 1
                self._flags.wait()
        except BaseException:
            self._flags.abort()
            raise

    def _together(self) -> None:
        try:
            self.team.together(self._work)
        except BaseException as error:
            self._error = error
        self._begun.set()

    def __enter__(self) -> Broadcasts:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: object, *_unused: object) -> None:
        self._over.set()
        self._thread.join(2 * PATIENCE_S)  # a call that hangs ends with an error of its own, which names the rank
        if kind is not None:
            return
        if self._thread.is_alive():
            raise SystemExit(f"gpu: the broadcasts beside the products did not end within {2 * PATIENCE_S:.0f} s")
        if self._error:
            raise self._error


def beside_products(team: Team, nbytes: int, rounds: int, size: int) -> dict[str, Any]:
    """Seconds of a matrix product on GPU rank 0's device, alone and with broadcasts of Isthmus' beside it."""
    torch, device = team.device.torch, team.device
    if device.simulated:
        a = b = torch.ones(size, size, device=device.device)
    else:  # random: a GPU that multiplies ones takes less power, and so a higher clock
        a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device.device) for _ in range(2))
    product = device.stream()
    tensors = [rank.tensor(nbytes // 4, 1.0) for rank in team.ranks]
    calls = [rank.call("isthmus", "broadcast", x, x) for rank, x in zip(team.ranks, tensors, strict=True)]
    team.seconds(calls, 1)

    def products(times: int) -> float:
        product.synchronize()
        begin = time.perf_counter()
        with device.on(product):
            for _ in range(times):
                torch.mm(a, b)
        product.synchronize()
        return (time.perf_counter() - begin) / times

    products(2)
    times = max(2, int(0.3 / max(products(2), 1e-6)))
    alone: list[float] = []
    beside: list[float] = []
    broadcasts: list[int] = []
    for number in range(rounds):
        if number % 2 == 0:
            alone.append(products(times))
        with Broadcasts(team, calls) as made:
            beside.append(products(times))
        broadcasts.append(made.number)
        if number % 2:
            alone.append(products(times))
    return {"bytes": nbytes, "matrix": size, "alone": alone, "beside": beside, "broadcasts": broadcasts}


# ---- the judgement ---------------------------------------------------------------------------------------------------


def least_seconds(
    row: dict[str, Any], kinds: list[str], copies: dict[str, list[float]], pool_rate: float, memory: float
) -> float:
    """What the copies take at least, and the sums, and the memory of ranks on the CPU. One GPU carries the copies of all its
    ranks.

    `pool_rate` is of all threads that reduce at once. `memory` is what the host's memory moves: each rank on the CPU has its
    input read there and its output written. What is staged may stay in caches, and does not count.
    """
    median = {name: statistics.median(rates) for name, rates in copies.items()}
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
    way_out = median["both"] if out and back else median["out"]
    way_in = median["both"] if out and back else median["in"]
    return float(max(out / way_out, back / way_in, sums / pool_rate, touched / memory))


def judge(result: dict[str, Any], kinds: list[str]) -> list[dict[str, Any]]:
    verdicts = []
    against_gloo: list[float] = []
    for row in result["rows"]:
        median = {name: statistics.median(times) for name, times in row["seconds"].items()}
        what = f"{row['collective']} {row['bytes']} B"
        for name in ("gloo", "relay"):
            if name in median:
                ratios = [a / b for a, b in zip(row["seconds"][name], row["seconds"]["isthmus"], strict=True)]
                verdicts.append(verdict(f"{what}: {name} over isthmus", ratios, None, True))
                if name == "gloo" and row["asked"] >= LARGE and row["collective"] in ("all_reduce", "broadcast"):
                    against_gloo.append(statistics.median(ratios))
        if row["asked"] >= LIMIT_FROM:  # in equal parts for three ranks it is some bytes less
            least = least_seconds(row, kinds, result["copies"], result["reduction"], result["memory"])
            rates = [least / seconds for seconds in row["seconds"]["isthmus"]]
            target = TARGETS.get(row["collective"], TARGETS["moves"])
            sums = ["sums"] if "reduce" in row["collective"] else []
            counts = ["copies", *sums, *(["memory"] if "cpu" in kinds else [])]
            limit = " and ".join([", ".join(counts[:-1]), counts[-1]] if counts[1:] else counts)
            verdicts.append(verdict(f"{what}: share of the limit of {limit}", rates, target, True))
        if row["collective"] == "all_reduce" and row["asked"] <= 8:
            micros = [seconds * 1e6 for seconds in row["seconds"]["isthmus"]]
            verdicts.append(verdict(f"{what}: us of a call, of those behind each other", micros, TARGETS["small_us"], False))
    if against_gloo:
        mean = statistics.geometric_mean(against_gloo)
        what = f"gloo over isthmus, all_reduce and broadcast from {LARGE} B, geometric mean"
        verdicts.append(
            verdict(what, [min(against_gloo), mean, max(against_gloo)], TARGETS["gloo"], True) | {"median": mean}
        )
        verdicts[-1]["good"] = mean >= TARGETS["gloo"]
    behind = result["buckets"]
    ratios = [whole / separate for whole, separate in zip(behind["whole"], behind["separate"], strict=True)]
    what = f"{behind['number']} all_reduces of {behind['bytes']} B behind each other: rate over that of one call"
    verdicts.append(verdict(what, ratios, TARGETS["buckets"], True))
    products = result["products"]
    slower = [b / a for a, b in zip(products["alone"], products["beside"], strict=True)]
    verdicts.append(verdict(f"matrix product beside a broadcast of {products['bytes']} B", slower, TARGETS["gemm"], False))
    if min(products["broadcasts"]) == 0:
        verdicts[-1]["good"] = False  # in some round there was none beside it
    return verdicts


def not_measured(result: dict[str, Any], asked: list[str]) -> list[str]:
    """What a target needs and this run has not."""
    whole = {row["asked"] for row in result["rows"]}
    lacks = [f"{name} did not take part: {why}" for name, why in result["absent"].items() if name in asked]
    if not any(nbytes <= 8 for nbytes in whole):
        lacks.append("no call of 8 B")
    if not any(nbytes >= LIMIT_FROM for nbytes in whole):
        lacks.append(f"no call of {LIMIT_FROM} B or more")
    return lacks


def verdict(what: str, ratios: list[float], target: float | None, more: bool) -> dict[str, Any]:
    median = statistics.median(ratios)
    good = None if target is None else (median >= target if more else median <= target)
    return {"what": what, "median": median, "least": min(ratios), "most": max(ratios), "target": target, "good": good}


def show_row(row: dict[str, Any]) -> None:
    medians = "  ".join(f"{name} {statistics.median(times) * 1e6:.1f}" for name, times in row["seconds"].items())
    print(f"{row['collective']:14s} {row['bytes']:>11d} B  us: {medians}", flush=True)


def show(result: dict[str, Any]) -> None:
    if result["simulated"]:  # its times say nothing
        for row in result["rows"]:
            print(f"rehearsal: {row['collective']} of {row['bytes']} B: right by {', '.join(row['seconds'])}")
        for name, why in result["absent"].items():
            print(f"rehearsal: {name} did not take part: {why}")
        print(f"rehearsal: {sum(result['products']['broadcasts'])} broadcasts beside the matrix products")
        return
    for name, why in result["absent"].items():
        print(f"{name} did not take part: {why}")
    rates = {name: statistics.median(values) for name, values in result["copies"].items()}
    rates |= {f"sums of {result['reducers']} threads": result["reduction"], "host memory": result["memory"]}
    print("GB/s: " + ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in rates.items()))
    for v in result["verdicts"]:
        word = {None: "", True: "pass", False: "SHORT"}[v["good"]]
        target = "" if v["target"] is None else f" (target {v['target']})"
        print(f"{v['what']}: {v['median']:.2f} [{v['least']:.2f} {v['most']:.2f}]{target} {word}".rstrip())


# ---- the program -----------------------------------------------------------------------------------------------------


def rehearse_here(vendor: str) -> None:
    """Starts this program again with the simulated libraries of that vendor before its eyes."""
    from isthmus import rehearse

    if os.environ.get(rehearse.FLEET):
        return
    libraries = [str(rehearse.folder().resolve() / vendor), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    print(rehearse.banner(f"{vendor}:1"), file=sys.stderr, flush=True)
    # All ranks' streams are on one device, with several operations in flight: none is to stand behind another rank's.
    given = {"REHEARSAL_DEVICES": "1", "REHEARSAL_QUIET": "1", "REHEARSAL_QUEUES": "32", rehearse.FLEET: f"{vendor}:1"}
    os.environ.update(given, LD_LIBRARY_PATH=os.pathsep.join(libraries))
    os.execv(sys.executable, [sys.executable, *sys.argv])


def without(device: Device) -> dict[str, str]:
    """Contenders that refuse this device's tensors, and their words: asked in a group of one, where nobody is waited for."""
    import torch.distributed as dist

    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=datetime.timedelta(seconds=PATIENCE_S))
    try:
        alone.allreduce([device.torch.ones(2, device=device.device)], dist.AllreduceOptions()).wait()
    except Exception as error:
        return {"gloo": str(error).splitlines()[0][:200]}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="gpu,gpu,cpu", help="what each rank works on (default %(default)s)")
    parser.add_argument("--rehearse", metavar="VENDOR", default="", help="a simulated device: nvidia, amd or ascend")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", help="in bytes, instead of 8 B to 1 GiB")
    parser.add_argument("--block", type=float, default=0.2, help="seconds of one contender's turn (default %(default)s)")
    parser.add_argument("--connections", type=int, help="hardware queues of the device (default: the driver's own number)")
    parser.add_argument("--check", action="store_true", help=f"exit status {MISSED} where a target is missed")
    parser.add_argument("--out", type=Path, help="the JSON file (default bench/results/gpu.json; none for a rehearsal)")
    args = parser.parse_args()
    kinds = args.ranks.split(",")
    if len(kinds) < 2 or "gpu" not in kinds or set(kinds) - {"gpu", "cpu"}:
        raise SystemExit(f"gpu: --ranks {args.ranks} must be two or more of gpu and cpu, one of them gpu")
    if args.connections:
        os.environ.update(dict.fromkeys(CONNECTIONS, str(args.connections)))
    if args.rehearse:
        rehearse_here(args.rehearse)
    device = Device(args.rehearse)
    small = args.quick or device.simulated
    copy_bytes, gemm_bytes, matrix = (1 << 20, 1 << 20, 128) if device.simulated else (COPY_BYTES, GEMM_BYTES, 8192)
    team = Team(kinds, device)
    result: dict[str, Any] = {
        "simulated": device.simulated,
        "device": device.name,
        **circumstances(),
        "versions": {"torch": device.torch.__version__, "isthmus": __import__("isthmus").__version__},
        "ranks": kinds,
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("ISTHMUS_")},
        "connections": {name: os.environ[name] for name in CONNECTIONS if name in os.environ},
        "absent": {name: "not asked for" for name in CONTENDERS if name not in args.contenders} | without(device),
        "rows": [],
    }
    for collective in COLLECTIVES:
        for nbytes in args.sizes or (QUICK_SIZES if small else SIZES):
            result["rows"].append(time_row(team, collective, nbytes, args.rounds, args.block, result["absent"]))
            if not device.simulated:
                show_row(result["rows"][-1])
    result["copies"] = copy_rates(device, copy_bytes, args.rounds)
    result["buckets"] = buckets(team, BUCKETS, (1 << 16) if device.simulated else BUCKET_BYTES, args.rounds)
    result["products"] = beside_products(team, gemm_bytes, args.rounds, matrix)
    team.close()
    if not device.simulated:
        result["reducers"] = reducers(len(kinds))
        result["reduction"], result["memory"] = reduction_rate(result["reducers"]), memory_rate()
        result["verdicts"] = judge(result, kinds)
    show(result)
    out = args.out or (None if device.simulated else ROOT / "bench" / "results" / "gpu.json")
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{'rehearsal: ' if device.simulated else ''}written: {out}")
    missed = [v["what"] for v in result.get("verdicts", []) if v["good"] is False]
    if args.check and not device.simulated:
        missed += [f"not measured: {what}" for what in not_measured(result, args.contenders)]
    if args.check and missed:
        print("\n".join(f"gpu: missed: {what}" for what in missed), file=sys.stderr)
        raise SystemExit(MISSED)


if __name__ == "__main__":
    main()
