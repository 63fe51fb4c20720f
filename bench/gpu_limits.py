"""The limits of bench/gpu.py: what the GPU's copies, the threads that reduce and the host's memory do at most."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from gpu_ranks import Device

COPY_BYTES, MEMORY_BYTES = 256 << 20, 64 << 20
SUM_SECONDS = 0.3  # of one measurement of sums
TRIES = 3  # of memory, whose best one counts

# For each line of its input it prints the samples of the rate at which it sums float32. Others do the same meanwhile.
_REDUCES = """
import json, sys
from isthmus import _core
print("ready", flush=True)
for line in sys.stdin:
    found = json.loads(_core.measure(float(line)))["entries"]
    print(json.dumps(next(one["samples"] for one in found if one["name"] == "reduce_float32")), flush=True)
"""


class Copies:
    """Copies between the device and pinned memory."""

    def __init__(self, device: Device, nbytes: int) -> None:
        torch = device.torch
        self.device, self.nbytes = device, nbytes
        self.there = [torch.empty(nbytes, dtype=torch.uint8, device=device.device) for _ in range(2)]
        self.pinned = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=not device.simulated) for _ in range(2)]
        self.streams = [device.stream() for _ in range(2)]

    def _run(self, out: bool, back: bool) -> float:
        for stream in self.streams:
            stream.synchronize()
        begin = time.perf_counter()
        if out:
            with self.device.on(self.streams[0]):
                self.pinned[0].copy_(self.there[0], non_blocking=True)
        if back:
            with self.device.on(self.streams[1]):
                self.there[1].copy_(self.pinned[1], non_blocking=True)
        for stream in self.streams:
            stream.synchronize()
        return self.nbytes / (time.perf_counter() - begin)

    def rates(self) -> dict[str, float]:
        """Bytes a second: out, in, and each way while both go on."""
        return {"out": self._run(True, False), "in": self._run(False, True), "both": self._run(True, True)}


def reducers(ranks: int) -> int:
    """Threads that reduce for these ranks at once: each rank's own, and those of the pool (ISTHMUS_REDUCE_THREADS)."""
    asked = int(os.environ.get("ISTHMUS_REDUCE_THREADS", "-1"))
    share = os.cpu_count() or 1  # all ranks of the host are in this process
    helpers = asked if asked >= 0 else min(max(share - 2 * ranks, 0), min(max(share // 2, 3), 7))
    return ranks + helpers


class Sums:
    """As many processes as threads reduce at once. They wait until they are asked, and then sum at the same time."""

    def __init__(self, number: int, device: str) -> None:
        # Each also measures the devices of ISTHMUS_DEVICE. So it is told of a vendor that has none here.
        elsewhere = "hip" if device.startswith("acl") else "acl"
        env = {**os.environ, "ISTHMUS_DEVICE": elsewhere}
        command, pipe = [sys.executable, "-c", _REDUCES], subprocess.PIPE
        self.jobs = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(number)]
        if any(self._line(job) != "ready\n" for job in self.jobs):
            raise SystemExit("gpu: a process that is to measure reductions has not begun")

    @staticmethod
    def _line(job: subprocess.Popen[str]) -> str:
        assert job.stdout
        return job.stdout.readline()

    def rate(self, seconds: float = SUM_SECONDS) -> float:
        """Bytes a second of the sums that all of them make together."""
        for job in self.jobs:
            assert job.stdin
            job.stdin.write(f"{seconds:g}\n")
            job.stdin.flush()
        said = [self._line(job) for job in self.jobs]
        if not all(said):
            raise SystemExit("gpu: a process that measures reductions has ended")
        return sum(statistics.median(json.loads(samples)) for samples in said)

    def close(self) -> None:
        for job in self.jobs:
            job.communicate()  # which closes its input


class Memory:
    """Copies of all processors in the host's memory."""

    def __init__(self, nbytes: int) -> None:
        import numpy as np

        number = min(16, os.cpu_count() or 1)
        self.copy, self.pairs = np.copyto, [(np.ones(nbytes // 8), np.zeros(nbytes // 8)) for _ in range(number)]

    def rate(self) -> float:
        """Bytes a second that are read and written."""
        best = float("inf")
        for _ in range(TRIES):
            threads = [threading.Thread(target=self.copy, args=(to, source)) for source, to in self.pairs]
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            best = min(best, time.perf_counter() - begin)
        return sum(2 * source.nbytes for source, _ in self.pairs) / best


class Limits:
    """All limits of one machine, each measured when it is asked for."""

    def __init__(self, device: Device, kinds: list[str]) -> None:
        small = device.simulated
        self.reducers = reducers(len(kinds))
        self.copies = Copies(device, 1 << 20 if small else COPY_BYTES)
        self.sums = Sums(self.reducers, device.isthmus)
        self.memory = Memory(1 << 20 if small else MEMORY_BYTES) if "cpu" in kinds else None
        self.rates("all_reduce")  # first touches count for none

    def rates(self, collective: str) -> dict[str, Any]:
        """Bytes a second of each limit that counts for this collective."""
        found = self.copies.rates()
        if "reduce" in collective:
            found["sums"] = self.sums.rate()
        if self.memory:
            found["memory"] = self.memory.rate()
        return found

    def close(self) -> None:
        self.sums.close()
