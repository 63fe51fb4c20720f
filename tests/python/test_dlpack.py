"""Arrays on a device that come by DLPack, in rehearsed fleets: whose memory, behind which stream, for how long."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlpack
import isthmus
from devices import DeviceArray, LentArray, OnDevice, on_host, run_fleet, vendor
from events import meet


def mine(comm: isthmus.Comm) -> Any:
    return comm if on_host() else OnDevice(comm)


def ended(*arrays: LentArray) -> None:
    """Every capsule came back, once."""
    gc.collect()
    assert not dlpack.wrong
    for array in arrays:
        assert array.log.lent == array.log.deleted > 0


@pytest.mark.parametrize("versioned", [True, False], ids=["DLPack 1", "DLPack 0"])
@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2", "nvidia:1,amd:1,cpu:1", "ascend:2", "ascend:1,nvidia:1"])
def test_arrays_are_taken_and_the_producer_is_told_the_operations_stream(fleet: str, versioned: bool) -> None:
    def body(comm: isthmus.Comm, versioned: bool) -> list[float]:
        stream = None if on_host() else vendor().stream()
        number = None if on_host() else vendor().default_stream
        got = []

        def of(values: Any) -> Any:
            if on_host():
                return np.array(values)
            array = LentArray(np.array(values), offset=256)
            array.versioned = versioned
            return array

        def value(x: Any, told: Any) -> float:
            if on_host():
                return float(x[-1])
            asked = x.log.asked[-1]
            assert asked.get("stream", None) == told, asked
            assert asked.get("max_version") == ((1, 0) if versioned else None), asked
            ended(x)
            return float(x.array.get()[-1])

        for count in (7, 200_000):
            for named in (False, True):
                options = {"stream": stream} if named and stream is not None else {}
                told = stream if named and number is not None else number
                x = of(np.full(count, comm.rank + 1.0, np.float32))
                assert comm.all_reduce(x, **options) is x
                got.append(value(x, told))
                x, out = of(np.full(count, comm.rank + 2.0, np.float32)), of(np.zeros(count, np.float32))
                assert comm.all_reduce(x, "max", out, **options) is out
                got += [value(out, told), value(x, told) - comm.rank]
                x = of(np.full(count, comm.rank * 10, np.int64))
                assert comm.broadcast(x, comm.size - 1, **options) is x
                got.append(value(x, told))
                x, out = of(np.full(count, comm.rank + 5, np.uint8)), of(np.zeros(count, np.uint8))
                root = comm.rank == 0
                assert comm.broadcast(x if root else None, 0, out, **options) is out
                got.append(value(out, told))
                x, out = of(np.full(count, comm.rank + 1, np.int16)), of(np.zeros(comm.size * count, np.int16))
                assert comm.all_gather(x, out, **options) is out
                got.append(value(out, told))
        if stream is not None:
            vendor().end_stream(stream)
        return got

    results = run_fleet(fleet, body, versioned)
    world = len(results)
    one = [world * (world + 1) / 2, world + 1.0, 2.0, (world - 1) * 10.0, 5.0, float(world)]
    assert results == [one * 4] * world


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:1,nvidia:1", "amd:2,cpu:1"])
@pytest.mark.parametrize("named", [False, True], ids=["default stream", "stream="])
def test_the_operation_begins_behind_what_the_producer_has_still_to_do(fleet: str, named: bool) -> None:
    """The data is on a stream of the producer's, and comes there only after the call has returned."""

    def body(comm: isthmus.Comm, named: bool) -> Any:
        n = 200_000
        mine(comm).all_reduce(np.ones(n, np.float32))  # a library's first call waits for all that the device has to do
        mine(comm).all_reduce(np.ones(n, np.float32))
        if on_host():
            comm.all_reduce(np.full(n, 5.0, np.float32))
            return False, comm.size * 5.0
        there = vendor()
        theirs, stream = there.stream(), there.stream()
        x = LentArray(np.zeros(n, np.float32))
        x.behind = theirs
        pinned = np.full(n, 5.0, np.float32)
        there.register(pinned.ctypes.data, pinned.nbytes)
        go_on = there.hold(theirs)
        there.copy_in(x.address, pinned.ctypes.data, pinned.nbytes, theirs)
        # A call that waited for the data would never return: it is let go only below.
        work = comm.all_reduce(x, async_op=True, **({"stream": stream} if named else {}))
        time.sleep(0.2)
        early = work.done
        go_on()
        work.wait()
        there.unregister(pinned.ctypes.data)
        got = float(x.array.get()[-1])
        for one in (theirs, stream):
            there.end_stream(one)
        return early, got

    def alone(named: bool) -> Any:
        """No stream of ours shares its hardware queue with the default stream or the producer's, which is an order too."""
        if not on_host():
            vendor().stream()  # the first queue is the default stream's
        with isthmus.init() as comm:
            return body(comm, named)

    results = run_fleet(fleet, alone, named, init=False, switches={"QUEUES": "64"})
    assert results == [(False, 5.0 * len(results))] * len(results)


@pytest.mark.parametrize("fleet", ["nvidia:2", "nvidia:1,amd:1"])
def test_the_memory_lives_until_the_operation_has_ended_and_goes_then(fleet: str, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: Path) -> list[tuple[int, int]]:
        mine(comm).all_reduce(np.ones(100_000, np.float32))
        there = vendor()
        stream = there.stream()
        seen = []

        def count(log: dlpack.Log) -> None:
            gc.collect()
            seen.append((log.lent, log.deleted))

        for keep, failing in ((True, False), (False, False), (True, True)):
            x = LentArray(np.ones(100_000, np.float32))
            log = x.log
            go_on = there.hold(stream)
            work = comm.all_reduce(x, async_op=True, stream=stream)
            del x
            count(log)  # the caller has let go of it, and only the operation has it now
            if failing:
                meet(comm, folder, "behind what is to end well")
                comm.abort("on purpose")
            if not keep:
                del work
            go_on()
            there.synchronize(stream)
            if not keep:
                for _ in range(2):  # what nobody waits for goes with a later call
                    mine(comm).all_reduce(np.ones(100, np.float32))
            elif failing:
                try:
                    work.wait()
                except isthmus.AbortedError:
                    pass
            else:
                work.wait()
            count(log)
            if keep:
                del work
                count(log)
        assert not dlpack.wrong
        return seen

    expected = [(1, 0), (1, 1), (1, 1), (1, 0), (1, 1), (1, 0), (1, 1), (1, 1)]
    assert run_fleet(fleet, body, tmp_path) == [expected] * 2


def test_groups_hold_their_arrays_too() -> None:
    def body(comm: isthmus.Comm) -> Any:
        peer = 1 - comm.rank
        x, out = LentArray(np.full(50_000, comm.rank + 1, np.int32)), LentArray(np.zeros(50_000, np.int32))
        with isthmus.group(async_op=True) as group:
            comm.recv(out, peer)
            comm.send(x, peer)
        logs, result = (x.log, out.log), out.array
        del x, out
        group.work.wait()
        gc.collect()
        assert [(log.lent, log.deleted) for log in logs] == [(1, 1)] * 2
        try:
            with isthmus.group():
                comm.send(LentArray(np.ones(3)), peer)
                raise KeyError
        except KeyError:
            pass
        assert not dlpack.wrong
        return int(result.get()[-1])

    assert run_fleet("nvidia:1,amd:1", body) == [2, 1]


@pytest.mark.parametrize("fleet", ["nvidia:2", "nvidia:1,amd:1"])
def test_a_receive_on_the_default_stream_does_not_hold_up_what_comes_there_later(fleet: str) -> None:
    """Both receive first, and send then from the same stream."""

    def body(comm: isthmus.Comm) -> int:
        peer, n = 1 - comm.rank, 300_000
        x, out = LentArray(np.full(n, comm.rank + 1, np.int32)), LentArray(np.zeros(n, np.int32))
        work = comm.recv(out, peer, async_op=True)
        comm.send(x, peer)
        work.wait()
        out2 = LentArray(np.zeros(n, np.int32))
        if comm.rank == 0:
            assert comm.recv(out2, peer) == peer
            comm.send(out, peer)
        else:
            comm.send(out, peer)
            assert comm.recv(out2, peer) == peer
        ended(x, out, out2)
        return int(out.array.get()[-1]) * 10 + int(out2.array.get()[-1])

    assert run_fleet(fleet, body) == [21, 12]


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_a_capsule_is_taken_and_stays_unused(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> float:
        x = LentArray(np.full(1000, 1.0))
        there = vendor()
        stream = there.stream()
        for versioned in (True, False):
            capsule = x.capsule(versioned)
            comm.all_reduce(capsule)
            comm.all_reduce(capsule, stream=stream)
            assert x.log.deleted == x.log.lent - 1
            work = comm.all_reduce(capsule, async_op=True)
            del capsule
            work.wait()
            assert x.log.deleted == x.log.lent - 1  # it is the result, which the work has
            del work
            ended(x)
        there.end_stream(stream)
        assert not x.log.asked
        return float(x.array.get()[-1])

    assert run_fleet(fleet, body) == [64.0] * 2


def test_dtypes_without_a_letter_and_arrays_without_elements() -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        import ml_dtypes

        got: list[Any] = []
        for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.complex64, np.bool_):
            x = LentArray(np.ones(33).astype(dtype))
            comm.all_reduce(x)
            got.append(x.array.get()[-1].astype(np.complex128).real)
        empty = LentArray(np.zeros((0, 4), np.float32))
        empty.strides = (1, 7)
        out = LentArray(np.zeros(0, np.float32))
        for address in (empty.address, 0, 4096):  # DLPack gives such arrays no address; some producers give any
            empty.address, empty.byte_offset = address, 0
            comm.all_reduce(empty)
            comm.all_gather(empty, out)
            comm.broadcast(empty, 1)
        counts = [0, 5]
        x, out = LentArray(np.full(counts[comm.rank], 3, np.int32)), LentArray(np.zeros(5, np.int32))
        if comm.rank == 0:
            x.address = 0
        comm.all_gather_v(x, counts, out)
        got += out.array.get().tolist()
        ended(empty, x, out)
        return got

    for fleet in ("nvidia:2", "amd:2", "nvidia:1,amd:1"):
        assert run_fleet(fleet, body) == [[2.0, 2.0, 2.0, 2.0, 1.0, 3, 3, 3, 3, 3]] * 2, fleet


@pytest.mark.parametrize("fleet", ["nvidia:1", "amd:1", "ascend:1"])
def test_what_is_refused_is_refused_by_name_and_comes_back(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> list[str]:
        there = vendor()
        said = []

        def array(**what: Any) -> LentArray:
            x = LentArray(np.ones((4, 4), np.float32))
            for name, value in what.items():
                setattr(x, name, value)
            return x

        def refused(kind: type[Exception], x: LentArray, out: LentArray | None = None, **options: Any) -> None:
            try:
                comm.all_reduce(x, "sum", out, **options)
            except kind as error:
                said.append(str(error))
            else:
                said.append("accepted")
            gc.collect()
            for one in filter(None, (x, out)):
                assert one.log.lent == one.log.deleted
            x.memory.address  # noqa: B018 - it is alive

        nowhere = array(number=1)
        refused(isthmus.ArgumentError, nowhere)
        assert not nowhere.log.asked  # its streams are not ours
        foreign = array(device_type=7)
        refused(isthmus.ArgumentError, foreign)
        assert not foreign.log.asked
        host = np.ones(16, np.float32)
        refused(isthmus.ArgumentError, array(address=host.ctypes.data))
        refused(isthmus.ArgumentError, array(flags=dlpack.READ_ONLY))
        refused(isthmus.ArgumentError, array(), array(flags=dlpack.READ_ONLY))
        refused(isthmus.ArgumentError, array(flags=dlpack.COPIED))
        refused(isthmus.ArgumentError, array(strides=(1, 4)))
        refused(isthmus.UnsupportedError, array(lanes=2))
        refused(isthmus.ArgumentError, array(), array(shape=(3, 5)))
        stream = there.stream()
        if there.default_stream is not None:
            refused(TypeError, array(streams=False), stream=stream)
        try:
            comm.all_gather(array())
        except isthmus.UnsupportedError as error:
            said.append(str(error))
        # And what is not refused: to read what must not be written; a matrix; an old producer on a device without numbers.
        x, out = array(flags=dlpack.READ_ONLY | dlpack.COPIED), array()
        comm.all_reduce(x, "sum", out, stream=stream)
        ended(x, out)
        if there.default_stream is None:
            old = array(versioned=False, streams=False)
            comm.all_reduce(old, stream=stream)
            ended(old)
        there.end_stream(stream)
        assert not dlpack.wrong and comm.error is None
        return said

    (said,) = run_fleet(fleet, body)
    here, type_name = {"n": ("cuda:0", "cuda"), "a": ("hip:0", "rocm")}[fleet[0]]
    if fleet == "ascend:1":
        here, type_name = "acl:0", "extension device"
    number, foreign, unknown, read_only, out, copied, strides, lanes, shape, *old, allocates = said
    assert number == f"all_reduce: x (LentArray) lies on {type_name}:1, and this rank works on {here}"
    assert foreign == f"all_reduce: x (LentArray) lies on vulkan:0, and this rank works on {here}"
    assert f"lies on {type_name}:0, and {here}, on which this rank works, has no memory at 0x" in unknown
    assert "x is read-only" in read_only and "out is read-only" in out
    assert "x (LentArray) gave a copy of itself" in copied
    assert "x is not contiguous" in strides and "pass a contiguous copy of it" in strides
    assert "2 lanes" in lanes
    assert "out has 15 elements; it needs 16" in shape
    assert "out= is needed" in allocates
    assert all("unexpected keyword argument 'stream'" in one for one in old) and len(old) == (fleet != "ascend:1")


def test_memory_of_the_other_device_is_refused_as_it_always_is() -> None:
    """Also where the producer says that it is ours."""

    def body(comm: isthmus.Comm) -> list[str]:
        said = []
        there = vendor()
        there.here(1)
        x = LentArray(np.ones(4, np.float32))
        there.here(0)
        for number in (1, 0):
            x.number = number
            try:
                comm.all_reduce(x)
            except isthmus.ArgumentError as error:
                said.append(str(error))
        try:
            comm.all_reduce(x.array)
        except isthmus.ArgumentError as error:
            said.append(str(error))
        ended(x)
        there.here(1)
        del x
        there.here(0)
        return said

    for fleet, here in (("nvidia:1", "cuda"), ("amd:1", "hip")):
        (said,) = run_fleet(fleet, body, switches={"DEVICES": "2"})
        by_dlpack, by_library, by_interface = said
        assert f":1, and this rank works on {here}:0" in by_dlpack
        assert by_library == by_interface
        assert f"is memory of {here}:1, and this rank works on {here}:0" in by_library


def test_arrays_that_are_ready_behind_two_streams_need_one_that_is_named() -> None:
    class Interface(DeviceArray):
        """As CuPy's and Numba's: the interface says behind which stream it is ready."""

        behind = 0

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "stream": self.behind}

    def body(comm: isthmus.Comm) -> Any:
        there = vendor()
        streams = there.stream(), there.stream()
        said = []
        ones = np.ones(1000, np.float32)

        def interface(stream: int) -> Interface:
            array = Interface.of(ones)
            array.behind = stream
            return array  # type: ignore[return-value]

        def attempt(x: Any, out: Any, **options: Any) -> None:
            try:
                comm.all_reduce(x, "sum", out, **options)
                said.append("taken")
            except isthmus.ArgumentError as error:
                said.append("refused" if "say which one with stream=" in str(error) else str(error))

        attempt(interface(streams[0]), interface(streams[0]))
        attempt(interface(streams[0]), interface(streams[1]))
        attempt(interface(streams[0]), interface(streams[1]), stream=streams[1])
        lent = LentArray(ones)
        attempt(interface(streams[0]), lent)  # is asked for that one
        told = lent.log.asked[-1]["stream"] == streams[0]
        attempt(lent, interface(streams[0]))
        attempt(lent, interface(1))  # the default stream, by the name that the interface has for it
        attempt(interface(streams[0]), lent.capsule())  # nobody can be asked
        ended(lent)
        for stream in streams:
            there.end_stream(stream)
        return told, said

    expected = ["taken", "refused", "taken", "taken", "refused", "taken", "refused"]
    assert run_fleet("nvidia:2", body) == [(True, expected)] * 2


def test_the_default_stream_of_a_thread_has_a_number_where_dlpack_has_one() -> None:
    def body(comm: isthmus.Comm) -> str:
        x = LentArray(np.ones(10, np.float32))
        try:
            comm.all_reduce(x, stream=2)
        except isthmus.UnsupportedError as error:
            comm.all_reduce(x, stream=1)  # the legacy one
            comm.all_reduce(x, stream=0)
            return f"{error}; {[asked['stream'] for asked in x.log.asked]}"
        comm.all_reduce(x, stream=0)
        return str([asked["stream"] for asked in x.log.asked])

    assert run_fleet("nvidia:1", body) == ["[2, 1]"]
    (said,) = run_fleet("amd:1", body)
    assert "DLPack has no number for the default stream of a thread" in said and said.endswith("; [0, 0]"), said


def test_managed_and_pinned_memory() -> None:
    """Managed memory belongs to no device; pinned memory is the host's."""

    def body(comm: isthmus.Comm) -> list[float]:
        x = LentArray(np.full(1000, comm.rank + 1.0))
        x.device_type, x.number = dlpack.CUDA_MANAGED, 7
        comm.all_reduce(x)
        assert x.log.asked[-1]["stream"] == 1
        host = np.full(1000, comm.rank + 1.0)
        pinned = dlpack.Producer(host, host.ctypes.data, host.shape, host.dtype)
        pinned.device_type = dlpack.CUDA_PINNED
        comm.all_reduce(pinned)
        assert "stream" not in pinned.log.asked[-1]
        ended(x)
        return [float(x.array.get()[0]), float(host[0])]

    assert run_fleet("nvidia:2", body) == [[3.0, 3.0]] * 2


def test_tensors_of_torch_on_a_device() -> None:
    """torch exports its own capsules. It has no name for the simulated device, so the tensor says one itself."""
    pytest.importorskip("torch")

    def body(comm: isthmus.Comm) -> list[Any]:
        import torch

        from isthmus import rehearsal_torch

        device = rehearsal_torch.register()

        class Tensor(torch.Tensor):
            def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
                return dlpack.EXTENSION, 0

        def on_device(values: Any) -> Any:
            tensor = values.to(device)
            torch.accelerator.synchronize()
            return tensor.as_subclass(Tensor)

        x = on_device(torch.full((500,), comm.rank + 1.0))
        out = on_device(torch.zeros(1000))
        stream = torch.accelerator.current_stream().native_handle
        assert comm.all_reduce(x, stream=stream) is x
        assert comm.all_gather(x, out) is out
        trained = on_device(torch.full((500,), comm.rank + 1.0)).requires_grad_()
        comm.all_reduce(trained)
        said = []
        for bad in (x.view(20, 25).t(), x.as_subclass(torch.Tensor)):
            try:
                comm.all_reduce(bad)
            except isthmus.Error as error:
                said.append(str(error))
        return [float(t.detach().cpu()[-1]) for t in (x, out, trained)] + said

    loaded: dict[str, Any] = {"modules": ("torch_preloaded",), "env": {"OMP_NUM_THREADS": "1"}}
    for *values, strided, plain in run_fleet("ascend:2", body, **loaded):
        assert values == [3.0, 3.0, 3.0]
        assert "x is not contiguous" in strided and "pass x.contiguous()" in strided
        assert "x is a tensor on rehearsal:0, which DLPack has no name for; pass x.cpu()" in plain
