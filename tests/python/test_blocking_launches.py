"""Programs that look for errors with blocking launches: every call that gives the device work returns when it has ended.

The simulated vendors honour the variables that the real ones have for it, and are meaner: copies, writes of words and
functions of the host block as well, and hold the driver's lock meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from test_devices import islands_of_libraries

BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1", "ASCEND_LAUNCH_BLOCKING": "1"}
CONCURRENT_KERNELS = {"cuDeviceGetAttribute": 31, "hipDeviceGetAttribute": 8}  # so with several hardware queues
CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "GPU_MAX_HW_QUEUES": "1"}


@pytest.mark.parametrize(
    ("fleet", "bridge"),
    [
        ("nvidia:2,amd:1,cpu:1", None),
        ("ascend:2,nvidia:1", "tcp"),
    ],
)
def test_every_collective_with_blocking_launches(fleet: str, bridge: str | None) -> None:
    done = run_fleet(fleet, islands_of_libraries, bridge=bridge, env=BLOCKING, timeout=240)
    assert len(set(done)) == 1 and done[0] > 0


def test_torchs_collectives_and_messages_with_blocking_launches() -> None:
    pytest.importorskip("torch")
    from test_torch_devices import every_collective, messages

    options: dict[str, Any] = {"init": False, "env": {**BLOCKING, "OMP_NUM_THREADS": "1"}, "modules": ("torch_preloaded",)}
    assert min(run_fleet("nvidia:2,ascend:1", every_collective, **options)) >= 4 * 15
    assert min(run_fleet("amd:1,cpu:1", messages, **options)) >= 3 * 5


def queues() -> int:
    """1: the simulated device has one hardware queue; 2: several; 0: a device that does not say so, or none."""
    if on_host() or os.environ["ISTHMUS_DEVICE"].startswith("acl"):
        return 0
    found = ctypes.c_int(-1)
    name = "hipDeviceGetAttribute" if os.environ["ISTHMUS_DEVICE"].startswith("hip") else "cuDeviceGetAttribute"
    attribute = CONCURRENT_KERNELS[name]
    vendor().call(name, ctypes.byref(found), attribute, 0)
    return 1 + found.value


@pytest.mark.product(3)
@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,nvidia:1", "ascend:2,cpu:1"])
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not blocking"])
@pytest.mark.parametrize("connections", [True, False], ids=["one connection", "eight queues"])
def test_streams_and_a_thread_that_frees_whatever_the_launches_and_the_hardware_queues(
    fleet: str, blocking: bool, connections: bool
) -> None:
    """Operations and messages on a stream of the program's, while another thread allocates and frees.

    The device has eight hardware queues, and as with the real drivers a variable of the user's leaves one of them.
    """

    def body(comm: isthmus.Comm) -> tuple[float, int]:
        x: Any = np.full(200_000, comm.rank + 1.0, np.float32)
        y: Any = np.zeros_like(x)
        stream, stop = None, threading.Event()

        def churn() -> None:
            vendor().here()
            while not stop.is_set():
                DeviceArray.of(np.zeros(1000, np.float32))

        thread = threading.Thread(target=churn)
        if not on_host():
            x, y, stream = DeviceArray.of(x), DeviceArray.of(y), vendor().stream()
            thread.start()
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for _ in range(5):
            comm.all_reduce(x, "max", x, stream=stream)
            comm.broadcast(x, 0, stream=stream)
            with isthmus.group():
                comm.recv(y, before, stream=stream)
                comm.send(x, after, stream=stream)
        works = [comm.all_reduce(y, "max", y, async_op=True) for _ in range(5)]
        for work in works:
            work.wait()
        stop.set()
        if not on_host():
            thread.join()
        return float((y if on_host() else y.get())[-1]), queues()

    env = {**(BLOCKING if blocking else {}), **(CONNECTIONS if connections else {})}
    results = run_fleet(fleet, body, env=env, switches={"QUEUES": "8"})
    assert [total for total, _ in results] == [3.0] * 3
    assert {found for _, found in results} - {0} <= {1 if connections else 2}, "the variable says how many there are"


def test_a_rank_that_dies_ends_what_stands_in_a_blocking_launch() -> None:
    """The calling threads are inside the driver then, until their gates are opened for good."""

    def body(comm: isthmus.Comm) -> str:
        x: Any = np.ones(160_000, np.float32)
        x = x if on_host() else DeviceArray.of(x)
        try:
            comm.all_reduce(x, "max", x)  # whose end may be here, and not yet on the others
            if comm.rank == comm.size - 1:
                time.sleep(0.3)  # the others may stand in the next one, or come to it later
                os.kill(os.getpid(), 9)
            for _ in range(100):
                comm.all_reduce(x, "max", x)
        except isthmus.PeerLostError as error:
            return str(error)
        return "nothing failed"

    for fleet in ("nvidia:2,cpu:1", "amd:1,nvidia:1", "ascend:2,cpu:1"):
        last = sum(int(part[-1]) for part in fleet.split(",")) - 1
        *others, _ = run_fleet(fleet, body, env=BLOCKING, expect={last: -9})
        assert all(f"rank {last}" in said for said in others), (fleet, others)
