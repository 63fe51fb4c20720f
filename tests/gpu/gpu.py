"""The GPUs of this machine, and ranks that work on them; where there are none, simulated ones in their place."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle

from devices import run_fleet
from isthmus import launch
from patience import patient
from ranks import RUNNER, RankError

# Asks a vendor's driver in a process of its own: it may end it, and what it starts must not be inherited.
_ASK = """
import ctypes, json
def cuda():
    driver = ctypes.CDLL("libcuda.so.1")
    count, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1:
        return None
    if driver.cuDeviceGetName(name, 256, 0):
        return None
    return {"runtime": "cuda", "count": count.value, "name": name.value.decode()}
def hip():
    for version in (7, 6, 5):
        try:
            runtime = ctypes.CDLL(f"libamdhip64.so.{version}")
        except OSError:
            continue
        count = ctypes.c_int()
        if runtime.hipInit(0) == 0 and runtime.hipGetDeviceCount(ctypes.byref(count)) == 0 and count.value > 0:
            return {"runtime": "hip", "count": count.value, "name": f"AMD, HIP {version}"}
    return None
def acl():
    runtime = ctypes.CDLL("libascendcl.so")
    count = ctypes.c_uint32()
    if runtime.aclInit(None) or runtime.aclrtGetDeviceCount(ctypes.byref(count)) or count.value < 1:
        return None
    return {"runtime": "acl", "count": count.value, "name": "Ascend"}
found = []
for ask in (cuda, hip, acl):
    try:
        found.append(ask())
    except OSError:
        pass
print(json.dumps([one for one in found if one and "imulated" not in one["name"]]))
"""
_SIMULATED = {"cuda": "nvidia", "hip": "amd", "acl": "ascend"}


@dataclass(frozen=True)
class Gpus:
    """Devices of one vendor. Simulated ones are called so in every test's name."""

    runtime: str
    count: int
    simulated: bool

    def __str__(self) -> str:
        return f"{'simulated ' if self.simulated else ''}{self.runtime}"

    @property
    def library(self) -> str:
        return {"cuda": "nccl", "hip": "rccl", "acl": "hccl"}[self.runtime]

    def run(
        self,
        kinds: str,
        body: Callable[..., Any],
        *arguments: Any,
        labels: str | None = None,
        bridge: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
        init: bool = True,
    ) -> list[Any]:
        """body(comm, *arguments) on ranks: "ggc" is two on GPUs, in turn on those there are, and one on host memory.

        `labels` are the ranks' islands, one letter each. Without `init` it is body(*arguments), which makes groups itself.
        """
        names = labels or "a" * len(kinds)
        if self.simulated:
            vendor = {"g": _SIMULATED[self.runtime], "c": "cpu"}
            fleet = ",".join(f"{vendor[kind]}:1@{label}" for kind, label in zip(kinds, names, strict=True))
            return run_fleet(fleet, body, *arguments, bridge=bridge, env=env, timeout=timeout, init=init)
        each: list[dict[str, str | None]] = []
        for rank, kind in enumerate(kinds):
            place = f"{self.runtime}:{kinds[:rank].count('g') % self.count}" if kind == "g" else "host"
            each.append({"ISTHMUS_DEVICE": place})
        with tempfile.TemporaryDirectory(prefix="isthmus-gpu-") as folder:
            (Path(folder) / "task").write_bytes(cloudpickle.dumps((body, arguments, init)))
            path = os.pathsep.join([str(RUNNER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
            given = {"ISTHMUS_TIMEOUT": "60", "PYTHONPATH": path, **(env or {})}
            command = [sys.executable, str(RUNNER), folder]
            with launch.start(command, len(kinds), islands=list(names), bridge=bridge, each=each, env=given) as job:
                ended = job.wait(timeout)
            if any(end.returncode for end in ended):
                raise RankError(
                    "\n".join(
                        f"--- rank {e.rank}: exit status {e.returncode}\n{e.stdout[-2000:]}{e.stderr[-4000:]}" for e in ended
                    )
                )
            return [pickle.loads((Path(folder) / f"result.{rank}").read_bytes()) for rank in range(len(kinds))]


@lru_cache(maxsize=1)
def gpus() -> list[Gpus]:
    """Those of this machine; else a simulated one, on which the same tests do less. TEST_GPU chooses whose: hip, acl.

    With TEST_GPU_REAL=1 there must be one of this machine: nothing simulated takes its place.
    """
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=patient(120), check=False)
    found = json.loads(asked.stdout) if asked.returncode == 0 else []
    real = [Gpus(one["runtime"], one["count"], False) for one in found]
    if not real and os.environ.get("TEST_GPU_REAL") == "1":
        raise RuntimeError(f"TEST_GPU_REAL is set, and no driver says that this machine has a GPU\n{asked.stderr}")
    return real or [Gpus(os.environ.get("TEST_GPU", "cuda"), 1, True)]
