"""Arrays in the memory of a device, and ranks of rehearsed fleets. The driver is called directly, as CuPy would call it."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

import isthmus
from isthmus import _arrays, rehearse
from ranks import RUNNER, RankError

_NAMES = {"bfloat16": "<V2", "float8_e4m3fn": "<V1", "float8_e5m2": "<V1"}  # what the interface has no name for


@lru_cache(maxsize=1)
def driver() -> ctypes.CDLL:
    """The driver that this process finds, with the primary context of device 0 current on this thread."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


def call(name: str, *arguments: Any) -> None:
    code = getattr(driver(), name)(*arguments)
    assert code == 0, f"{name} gave {code}"


class DeviceMemory:
    """Bytes on device 0, freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(nbytes, 1)))

    def __del__(self) -> None:
        driver().cuMemFree_v2(self.address)


class DeviceArray:
    """What CuPy's array is to a library: `__cuda_array_interface__`, a dtype, a shape."""

    def __init__(self, memory: DeviceMemory, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory, self.offset, self.shape, self.dtype = memory, offset, shape, np.dtype(dtype)
        self.read_only = False

    @classmethod
    def of(cls, host: np.ndarray[Any, Any], offset: int = 0) -> DeviceArray:
        array = cls(DeviceMemory(host.nbytes + offset), offset, host.shape, host.dtype)
        array.set(host)
        return array

    @property
    def address(self) -> int:
        return int(self.memory.address.value) + self.offset

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        name = _NAMES.get(self.dtype.name, self.dtype.str)
        return {"shape": self.shape, "typestr": name, "data": (self.address, self.read_only), "version": 3, "strides": None}

    def part(self, first: int, count: int) -> DeviceArray:
        return DeviceArray(self.memory, self.offset + first * self.dtype.itemsize, (count,), self.dtype)

    def set(self, host: np.ndarray[Any, Any]) -> None:
        host = np.ascontiguousarray(host)
        if host.nbytes:
            call(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(self.address),
                ctypes.c_void_p(host.ctypes.data),
                ctypes.c_size_t(host.nbytes),
            )

    def get(self) -> np.ndarray[Any, Any]:
        host = np.empty(self.shape, self.dtype)
        if host.nbytes:
            call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(host.ctypes.data),
                ctypes.c_uint64(self.address),
                ctypes.c_size_t(host.nbytes),
            )
        return host


class OnDevice:
    """A communicator whose calls work on the device: arrays are copied there, the call is made, and all are copied back.

    So every test that is written for NumPy arrays says the same of device memory.
    """

    def __init__(self, comm: isthmus.Comm) -> None:
        self.comm = comm

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.comm, name)
        if not callable(method) or name in ("explain", "topology", "split", "send", "recv", "barrier"):
            return method

        makes = {"all_gather": "stacked", "gather": "stacked", "reduce_scatter": "block", "all_to_all": "same"}.get(name)

        def on_device(*arguments: Any, **options: Any) -> Any:
            if makes and "out" not in options and sum(isinstance(a, np.ndarray) for a in arguments) == 1:
                options["out"] = getattr(_arrays, makes)(arguments[0], self.comm.size)
            hosts = [a for a in (*arguments, *options.values()) if isinstance(a, np.ndarray)]
            # An array that lies in another (in place) is a part of that one's image.
            whole = sorted(hosts, key=lambda a: -a.nbytes)
            images: dict[int, DeviceArray] = {}
            for host in whole:
                begin = host.ctypes.data
                for outer in whole:
                    image = images.get(id(outer))
                    if image and outer.ctypes.data <= begin and begin + host.nbytes <= outer.ctypes.data + outer.nbytes:
                        offset = image.offset + begin - outer.ctypes.data
                        images[id(host)] = DeviceArray(image.memory, offset, host.shape, host.dtype)
                        break
                else:
                    images[id(host)] = DeviceArray.of(host, offset=host.ctypes.data % 2)

            def there(value: Any) -> Any:
                return images[id(value)] if isinstance(value, np.ndarray) else value

            result = method(*map(there, arguments), **{key: there(value) for key, value in options.items()})
            for host in hosts:
                host[...] = images[id(host)].get()
            back = {id(image): host for host in hosts for image in [images[id(host)]]}
            return back.get(id(result), result)

        return on_device


def run_fleet(
    fleet: str,
    body: Callable[..., Any],
    *arguments: Any,
    bridge: str | None = None,
    env: Mapping[str, str] | None = None,
    switches: Mapping[str, str] | None = None,
    timeout: float = 120,
    init: bool = True,
    expect: Mapping[int, int] | None = None,
) -> list[Any]:
    """body(comm, *arguments) on the ranks of a rehearsed fleet; the results by rank. See ranks.run_processes."""
    expected = dict(expect or {})
    with tempfile.TemporaryDirectory(prefix="isthmus-fleet-") as folder:
        (Path(folder) / "task").write_bytes(cloudpickle.dumps((body, arguments, init)))
        path = os.pathsep.join([str(RUNNER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        before = dict(os.environ)
        os.environ.update({"ISTHMUS_TIMEOUT": "20", "PYTHONPATH": path, **(env or {})})
        try:
            command = [sys.executable, str(RUNNER), folder]
            job = rehearse.start(command, fleet, bridge=bridge, switches={"QUIET": "1", **(switches or {})})
        finally:
            os.environ.clear()
            os.environ.update(before)
        with job:
            ended = job.wait(timeout)
        bad = [end for end in ended if end.returncode != expected.get(end.rank, 0) or "misuse" in end.stderr]
        if bad:
            raise RankError(
                "\n".join(
                    f"--- rank {end.rank} of {fleet}: exit status {end.returncode}, expected {expected.get(end.rank, 0)}\n"
                    f"{end.stdout[-2000:]}{end.stderr[-4000:]}"
                    for end in ended
                )
            )
        results = []
        for rank in range(len(ended)):
            answer = Path(folder) / f"result.{rank}"
            results.append(pickle.loads(answer.read_bytes()) if answer.exists() else None)
        return results
