"""Arrays of CuPy, as its wheel has them, over the memory of simulated devices.

CuPy has NVIDIA's runtime inside, linked statically, and that wants functions of the driver that the simulation does not
have; one of them, cuGetExportTable, gives tables that nobody publishes. So whatever CuPy asks its runtime fails here:
allocating, kernels, and the current stream, which is in version 3 of the array interface. Arrays over memory that is given
are CuPy's own all the same, and so is version 2 of the interface, which CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION asks for;
the stream of version 3 is put beside it here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import DeviceArray, DeviceMemory, on_host, run_fleet, vendor

FOLDER = Path(__file__).resolve().parents[2] / "build" / "vendor-headers" / "cupy"
VERSION = "CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks find CuPy."""
    if not (FOLDER / "cupy" / "__init__.py").is_file():
        reason = "no CuPy in build/vendor-headers: scripts/vendor_headers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv(VERSION, "2")


def array_of(host: np.ndarray[Any, Any], kind: str = "ndarray") -> Any:
    """An array of CuPy's with that content; as kind="Behind", one that says behind which stream it is ready."""
    import cupy

    class Behind(cupy.ndarray):  # type: ignore[misc]
        stream: object = 1

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "version": 3, "stream": self.stream}

    memory = DeviceMemory(host.nbytes)
    if host.nbytes:
        vendor().copy_in(memory.address, host.ctypes.data, host.nbytes)
    owner = cupy.cuda.UnownedMemory(memory.address, max(host.nbytes, 1), memory, device_id=0)
    return {"ndarray": cupy.ndarray, "Behind": Behind}[kind](host.shape, host.dtype, cupy.cuda.MemoryPointer(owner, 0))


def content(array: Any) -> np.ndarray[Any, Any]:
    host = np.empty(array.shape, array.dtype)
    if host.nbytes:
        vendor().copy_out(host.ctypes.data, array.data.ptr, host.nbytes)
    return host


@pytest.mark.usefixtures("cupy")
def test_arrays_of_cupy_are_taken_wherever_arrays_are() -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        found: list[Any] = []
        for dtype in ("float32", "float16", "int64", "uint8", "complex64", "bool"):
            for shape in ((3, 700), (0,), ()):
                values = np.full(shape, comm.rank + 1).astype(dtype)
                op = "max" if dtype == "bool" else "sum"
                if on_host():
                    comm.all_reduce(values, op)
                    comm.all_reduce(values.copy(), op, np.zeros_like(values))
                    continue
                x = array_of(values)
                assert comm.all_reduce(x, op) is x
                out = array_of(np.zeros_like(values))
                assert comm.all_reduce(x, op, out) is out
                found.append((dtype, shape, content(x).tolist(), content(out).tolist()))
        every = np.arange(5.0) if on_host() else array_of(np.arange(5.0))
        comm.broadcast(every[1:3], 0)  # a part that is contiguous
        if not on_host():
            with pytest.raises(isthmus.ArgumentError, match="not contiguous"):
                comm.broadcast(every[::2], 0)
        return found

    first, second, _ = run_fleet("nvidia:2,cpu:1", body)
    assert first == second
    for dtype, shape, total, twice in first:
        one = True if dtype == "bool" else 6  # 1 + 2 + 3
        # The host's numbers were not changed by the other sum of the devices' results: 6 + 6 + 6.
        two = True if dtype == "bool" else 18
        assert total == np.full(shape, one).astype(dtype).tolist(), (dtype, shape)
        assert twice == np.full(shape, two).astype(dtype).tolist(), (dtype, shape)


@pytest.mark.usefixtures("cupy")
def test_an_array_of_cupy_on_a_rank_of_the_host_is_refused_by_name() -> None:
    def body(comm: isthmus.Comm) -> str:
        import cupy

        owner = cupy.cuda.UnownedMemory(4096, 64, None, device_id=0)
        try:
            comm.all_reduce(cupy.ndarray((4,), cupy.float32, cupy.cuda.MemoryPointer(owner, 0)))
        except isthmus.UnsupportedError as error:
            return str(error)
        return ""

    (said,) = run_fleet("cpu:1", body)
    assert "all_reduce: x (ndarray) lies in the memory of a device" in said and "set ISTHMUS_DEVICE" in said, said


@pytest.mark.usefixtures("cupy")
def test_what_cupy_cannot_say_is_cupys_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for an array without an interface."""
    monkeypatch.setenv(VERSION, "3")

    def body(comm: isthmus.Comm) -> list[str]:
        x = array_of(np.ones(4, np.float32))
        try:
            comm.all_reduce(x)
        except Exception as error:
            return [type(error).__name__, str(error)]
        return []

    ((kind, text),) = run_fleet("nvidia:1", body)
    assert kind == "CUDARuntimeError" and "cudaErrorCallRequiresNewerDriver" in text


class Interface(DeviceArray):
    """A stand-in for CuPy's and Numba's arrays on any vendor's devices."""

    stream: object = 1

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**super().__cuda_array_interface__, "stream": self.stream}


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("named", [False, True], ids=["the array's stream", "stream="])
@pytest.mark.parametrize(("fleet", "kind"), [("nvidia:2", "cupy"), ("amd:1,nvidia:1", "stand-in")])
def test_the_operation_begins_behind_the_stream_that_the_interface_names(fleet: str, kind: str, named: bool) -> None:
    """The data is on a stream of the producer's, and comes there only after the call has returned."""

    def alone(kind: str, named: bool) -> Any:
        there = vendor()
        there.stream()  # the first queue is the default stream's: no stream of ours shares one
        with isthmus.init() as comm:
            n = 200_000
            warm = DeviceArray.of(np.ones(n, np.float32))
            for _ in range(2):
                comm.all_reduce(warm)  # a library's first call waits for all that the device has to do
            theirs, ours = there.stream(), there.stream()
            zeros = np.zeros(n, np.float32)
            x: Any = array_of(zeros, "Behind") if kind == "cupy" else Interface.of(zeros)
            x.stream = theirs
            pinned = np.full(n, 5.0, np.float32)
            there.register(pinned.ctypes.data, pinned.nbytes)
            go_on = there.hold(theirs)
            address = x.data.ptr if kind == "cupy" else x.address
            there.copy_in(address, pinned.ctypes.data, pinned.nbytes, theirs)
            # A call that waited for the data would never return: it is let go only below.
            work = comm.all_reduce(x, async_op=True, **({"stream": ours} if named else {}))
            time.sleep(0.2)
            early = work.done
            go_on()
            work.wait()
            there.unregister(pinned.ctypes.data)
            got = content(x) if kind == "cupy" else x.get()
            for one in (theirs, ours):
                there.end_stream(one)
            return early, float(got[0]), float(got[-1])

    results = run_fleet(fleet, alone, kind, named, init=False, switches={"QUEUES": "64"})
    assert results == [(False, 10.0, 10.0)] * 2


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_numbers_that_the_interface_gives_to_no_stream_are_refused(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> Any:
        said = []
        stream = vendor().stream()
        for number in (0, -1, 1 << 70, "1", 1.0):
            for options in ({}, {"stream": stream}):
                x = Interface.of(np.ones(10, np.float32))
                x.stream = number  # type: ignore[attr-defined]
                try:
                    comm.all_reduce(x, **options)
                    said.append("taken")
                except isthmus.ArgumentError as error:
                    said.append(str(error))
        x = Interface.of(np.ones(10, np.float32))
        for options in ({}, {"stream": stream}):
            comm.all_reduce(x, **options)  # 1: the default stream
        vendor().end_stream(stream)
        return said, float(x.get()[-1])

    for said, last in run_fleet(fleet, body):
        assert len(said) == 10 and last == 4.0
        for text in said:
            assert "__cuda_array_interface__ whose stream is" in text and "1 is the default stream" in text, text


def test_the_default_stream_of_a_thread_orders_too() -> None:
    def body(comm: isthmus.Comm) -> float:
        x = Interface.of(np.ones(10, np.float32))
        x.stream = 2  # type: ignore[attr-defined]
        stream = vendor().stream()
        comm.all_reduce(x)
        comm.all_reduce(x, stream=stream)
        vendor().end_stream(stream)
        return float(x.get()[-1])

    assert run_fleet("nvidia:2", body) == [4.0, 4.0]


@pytest.mark.parametrize("fleet", ["nvidia:1", "amd:1"])
def test_a_stream_that_is_captured_orders_nothing(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> Any:
        there, said = vendor(), []
        captured, ours = there.stream(), there.stream()
        x = Interface.of(np.ones(10, np.float32))
        x.stream = captured  # type: ignore[attr-defined]
        there.begin_capture(captured)
        for options in ({}, {"stream": ours}):
            try:
                comm.all_reduce(x, **options)
            except isthmus.UnsupportedError as error:
                said.append(str(error))
        there.end_capture(captured)
        for options in ({}, {"stream": ours}):
            comm.all_reduce(x, **options)
        there.synchronize(ours)
        for one in (captured, ours):
            there.end_stream(one)
        return said, float(x.get()[-1])

    ((said, last),) = run_fleet(fleet, body)
    assert len(said) == 2 and all("being captured into a graph" in text for text in said), said
    assert "x is ready behind another stream than stream=" in said[1] and last == 1.0, said
