"""Arrays in the memory of a device, and ranks of rehearsed fleets. The vendor's library is called directly, as by CuPy."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np

import isthmus
from dlpack import Producer
from isthmus import _arrays, launch, rehearse
from patience import patient
from ranks import run_task

_NAMES = {"bfloat16": "<V2", "float8_e4m3fn": "<V1", "float8_e5m2": "<V1"}  # what the interface has no name for


class Vendor:
    """What the tests call of a vendor's library, in one form. Addresses are integers."""

    family: str  # of the library that serves its islands
    dlpack: int  # DLPack's type of its devices
    default_stream: int | None  # DLPack's number of it
    # Calls that an operation in steady traffic must not make, and calls that it does make.
    forbidden: tuple[str, ...]
    used: tuple[str, ...]

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} gave {code}"

    def allocate(self, nbytes: int) -> int:
        raise NotImplementedError

    def free(self, address: int) -> None:
        raise NotImplementedError

    def copy_in(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        """From host memory to the device: now, or on a stream."""
        raise NotImplementedError

    def copy_out(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        raise NotImplementedError

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """As the program's own fill: the vendor's call may return before the device has done it."""
        raise NotImplementedError

    def register(self, address: int, nbytes: int) -> None:
        raise NotImplementedError

    def unregister(self, address: int) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Resets device 0, whoever else uses it. After here() it can be used anew."""
        raise NotImplementedError

    def stream(self) -> int:
        raise NotImplementedError

    def end_stream(self, stream: int) -> None:
        raise NotImplementedError

    def synchronize(self, stream: int) -> None:
        raise NotImplementedError

    def hold(self, stream: int) -> Callable[[], None]:
        """The stream goes no further until the function that is returned is called."""
        raise NotImplementedError

    def order(self, before: int, after: int) -> None:
        """What the stream `after` is given from now on comes behind what `before` holds."""
        raise NotImplementedError

    def begin_capture(self, stream: int, for_all: bool = False) -> None:
        """`for_all`: while it lasts, no thread may do what captures forbid, but one that says it stands aside."""
        raise NotImplementedError

    def end_capture(self, stream: int) -> None:
        raise NotImplementedError

    def here(self, device: int = 0) -> None:
        """Makes that device the one that this thread works on."""
        raise NotImplementedError


def _word(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def _pointer(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


class Cuda(Vendor):
    family, dlpack, default_stream = "nccl", 2, 1
    forbidden = (
        "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuStreamQuery", "cuMemAlloc", "cuMemFree",
        "cuMemHostAlloc", "cuMemHostRegister", "cuMemHostUnregister", "cuStreamCreate", "cuStreamDestroy", "cuEventCreate",
        "cuEventDestroy", "cuLaunchHostFunc", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpy",
    )  # fmt: skip
    used = (
        "cuMemcpyAsync", "cuStreamWriteValue64", "cuStreamWaitValue64", "cuEventRecord", "cuStreamWaitEvent",
        "ncclAllReduce",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL("libcuda.so.1"))
        self.contexts: dict[int, ctypes.c_void_p] = {}
        self.call("cuInit", 0)
        self.here()

    def here(self, device: int = 0) -> None:
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts[device] = context
        self.call("cuCtxSetCurrent", self.contexts[device])

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), _size(nbytes))
        return address.value

    def free(self, address: int) -> None:
        self.library.cuMemFree_v2(_word(address))

    def copy_in(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("cuMemcpyHtoD_v2", _word(to), _pointer(source), _size(nbytes))
            self.synchronize(0)  # the driver comes back before the device has it, and another stream may come next
        else:
            self.call("cuMemcpyHtoDAsync_v2", _word(to), _pointer(source), _size(nbytes), _pointer(stream))

    def copy_out(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("cuMemcpyDtoH_v2", _pointer(to), _word(source), _size(nbytes))
        else:
            self.call("cuMemcpyDtoHAsync_v2", _pointer(to), _word(source), _size(nbytes), _pointer(stream))

    def reset(self) -> None:
        self.call("cuDevicePrimaryCtxReset_v2", 0)
        self.contexts.clear()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self.call("cuMemsetD8_v2", _word(address), ctypes.c_ubyte(byte), _size(nbytes))

    def register(self, address: int, nbytes: int) -> None:
        self.call("cuMemHostRegister_v2", _pointer(address), _size(nbytes), 2)

    def unregister(self, address: int) -> None:
        self.call("cuMemHostUnregister", _pointer(address))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return int(stream.value or 0)

    def end_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", _pointer(stream))

    def synchronize(self, stream: int) -> None:
        self.call("cuStreamSynchronize", _pointer(stream))

    def hold(self, stream: int) -> Callable[[], None]:
        word = np.zeros(8, np.uint64)
        there = ctypes.c_uint64()
        self.register(word.ctypes.data, word.nbytes)
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), _pointer(word.ctypes.data), 0)
        self.call("cuStreamWaitValue64_v2", _pointer(stream), there, _word(1), 0)
        _kept.append(word)

        def go_on() -> None:
            word[0] = 1

        return go_on

    def order(self, before: int, after: int) -> None:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        self.call("cuEventRecord", event, _pointer(before))
        self.call("cuStreamWaitEvent", _pointer(after), event, 0)
        self.call("cuEventDestroy_v2", event)

    def begin_capture(self, stream: int, for_all: bool = False) -> None:
        self.call("cuStreamBeginCapture_v2", _pointer(stream), 0 if for_all else 2)

    def end_capture(self, stream: int) -> None:
        graph = ctypes.c_void_p()
        self.library.cuStreamEndCapture(_pointer(stream), ctypes.byref(graph))


class Hip(Vendor):
    family, dlpack, default_stream = "rccl", 10, 0
    forbidden = (
        "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize", "hipStreamQuery", "hipMalloc", "hipFree",
        "hipExtMallocWithFlags", "hipHostMalloc", "hipHostRegister", "hipHostUnregister", "hipStreamCreate",
        "hipStreamCreateWithFlags", "hipStreamDestroy", "hipEventCreate", "hipEventCreateWithFlags", "hipEventDestroy",
        "hipLaunchHostFunc", "hipMemcpy",
    )  # fmt: skip
    used = (
        "hipMemcpyAsync", "hipStreamWriteValue64", "hipStreamWaitValue64", "hipEventRecord", "hipStreamWaitEvent",
        "ncclAllReduce",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL(f"libamdhip64.so.{os.environ.get('TEST_HIP', '7')}"))
        self.call("hipInit", 0)
        self.here()

    def here(self, device: int = 0) -> None:
        self.call("hipSetDevice", device)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(address), _size(nbytes))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self.library.hipFree(_pointer(address))

    def copy_in(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("hipMemcpy", _pointer(to), _pointer(source), _size(nbytes), 1)
        else:
            self.call("hipMemcpyAsync", _pointer(to), _pointer(source), _size(nbytes), 1, _pointer(stream))

    def copy_out(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        if stream is None:
            self.call("hipMemcpy", _pointer(to), _pointer(source), _size(nbytes), 2)
        else:
            self.call("hipMemcpyAsync", _pointer(to), _pointer(source), _size(nbytes), 2, _pointer(stream))

    def reset(self) -> None:
        self.call("hipDeviceReset")

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self.call("hipMemset", _pointer(address), byte, _size(nbytes))

    def register(self, address: int, nbytes: int) -> None:
        self.call("hipHostRegister", _pointer(address), _size(nbytes), 2)

    def unregister(self, address: int) -> None:
        self.call("hipHostUnregister", _pointer(address))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("hipStreamCreateWithFlags", ctypes.byref(stream), 1)
        return int(stream.value or 0)

    def end_stream(self, stream: int) -> None:
        self.call("hipStreamDestroy", _pointer(stream))

    def synchronize(self, stream: int) -> None:
        self.call("hipStreamSynchronize", _pointer(stream))

    def hold(self, stream: int) -> Callable[[], None]:
        word = ctypes.c_void_p()
        self.call("hipExtMallocWithFlags", ctypes.byref(word), _size(8), 2)
        value = ctypes.cast(word, ctypes.POINTER(ctypes.c_uint64))
        value[0] = 0
        self.call("hipStreamWaitValue64", _pointer(stream), word, _word(1), 0, _word(2**64 - 1))

        def go_on() -> None:
            value[0] = 1

        return go_on

    def order(self, before: int, after: int) -> None:
        event = ctypes.c_void_p()
        self.call("hipEventCreateWithFlags", ctypes.byref(event), 2)
        self.call("hipEventRecord", event, _pointer(before))
        self.call("hipStreamWaitEvent", _pointer(after), event, 0)
        self.call("hipEventDestroy", event)

    def begin_capture(self, stream: int, for_all: bool = False) -> None:
        self.call("hipStreamBeginCapture", _pointer(stream), 0 if for_all else 2)

    def end_capture(self, stream: int) -> None:
        graph = ctypes.c_void_p()
        self.library.hipStreamEndCapture(_pointer(stream), ctypes.byref(graph))


class Acl(Vendor):
    family, dlpack, default_stream = "hccl", 12, None
    forbidden = (
        "aclrtSynchronizeDevice", "aclrtSynchronizeStream", "aclrtSynchronizeStreamWithTimeout", "aclrtSynchronizeEvent",
        "aclrtStreamQuery", "aclrtMalloc", "aclrtFree", "aclrtMallocHost", "aclrtFreeHost", "aclrtHostRegister",
        "aclrtHostRegisterV2", "aclrtHostUnregister", "aclrtCreateStream", "aclrtCreateStreamWithConfig",
        "aclrtDestroyStream", "aclrtDestroyStreamForce", "aclrtCreateEvent", "aclrtCreateEventWithFlag",
        "aclrtCreateEventExWithFlag", "aclrtDestroyEvent", "aclrtMemcpy",
    )  # fmt: skip
    used = ("aclrtMemcpyAsync", "aclrtRecordEvent", "aclrtStreamWaitEvent", "HcclAllReduce")

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL("libascendcl.so"))
        assert self.library.aclInit(None) in (0, 100002)  # somebody else may have done it
        self.here()

    def here(self, device: int = 0) -> None:
        self.call("aclrtSetDevice", device)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        self.call("aclrtMalloc", ctypes.byref(address), _size(nbytes), 0)
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self.library.aclrtFree(_pointer(address))

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int | None) -> None:
        arguments = (_pointer(to), _size(nbytes), _pointer(source), _size(nbytes), kind)
        if stream is None:
            self.call("aclrtMemcpy", *arguments)
        else:
            self.call("aclrtMemcpyAsync", *arguments, _pointer(stream))

    def copy_in(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self._copy(to, source, nbytes, 1, stream)

    def copy_out(self, to: int, source: int, nbytes: int, stream: int | None = None) -> None:
        self._copy(to, source, nbytes, 2, stream)

    def reset(self) -> None:
        self.call("aclrtResetDeviceForce", 0)

    def register(self, address: int, nbytes: int) -> None:
        """Whole pages: the runtime registers no memory that begins within one."""
        first = address & ~4095
        self.call("aclrtHostRegisterV2", _pointer(first), _word(address + nbytes - first), 0x10000002)

    def unregister(self, address: int) -> None:
        self.call("aclrtHostUnregister", _pointer(address & ~4095))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("aclrtCreateStreamWithConfig", ctypes.byref(stream), 0, 3)
        return int(stream.value or 0)

    def end_stream(self, stream: int) -> None:
        self.call("aclrtDestroyStream", _pointer(stream))

    def synchronize(self, stream: int) -> None:
        self.call("aclrtSynchronizeStream", _pointer(stream))

    def hold(self, stream: int) -> Callable[[], None]:
        """A function of the C library's that waits, so that nobody needs the interpreter for it."""
        c = ctypes.CDLL(None)
        semaphore = ctypes.create_string_buffer(64)
        c.sem_init(semaphore, 0, 0)
        self.call("aclrtLaunchHostFunc", _pointer(stream), ctypes.cast(c.sem_wait, ctypes.c_void_p), semaphore)
        _kept.append(semaphore)

        def go_on() -> None:
            c.sem_post(semaphore)

        return go_on

    def begin_capture(self, stream: int, for_all: bool = False) -> None:
        self.call("aclmdlRICaptureBegin", _pointer(stream), 0 if for_all else 2)

    def end_capture(self, stream: int) -> None:
        graph = ctypes.c_void_p()
        self.library.aclmdlRICaptureEnd(_pointer(stream), ctypes.byref(graph))


_kept: list[Any] = []  # memory that a device may still look at


@lru_cache(maxsize=1)
def vendor() -> Vendor:
    """The libraries of the device that this process works on, with device 0 current on the thread that asks first."""
    return {"cuda": Cuda, "hip": Hip, "acl": Acl}[os.environ["ISTHMUS_DEVICE"].split(":")[0]]()


def on_host() -> bool:
    return os.environ["ISTHMUS_DEVICE"] == "host"


class DeviceMemory:
    """Bytes on device 0, freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.address = vendor().allocate(max(nbytes, 1))

    def __del__(self) -> None:
        vendor().free(self.address)


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
        return self.memory.address + self.offset

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
            vendor().copy_in(self.address, host.ctypes.data, host.nbytes)

    def get(self) -> np.ndarray[Any, Any]:
        host = np.empty(self.shape, self.dtype)
        if host.nbytes:
            vendor().copy_out(host.ctypes.data, self.address, host.nbytes)
        return host


class LentArray(Producer):
    """An array on the device that speaks DLPack alone. What it has still to do with its memory stands on `behind`."""

    behind: int | None = None

    def __init__(self, host: np.ndarray[Any, Any], offset: int = 0) -> None:
        array = DeviceArray.of(host, offset)
        super().__init__(array.memory, array.address, array.shape, array.dtype)
        self.device_type, self.byte_offset = vendor().dlpack, offset

    @property
    def array(self) -> DeviceArray:
        return DeviceArray(self.memory, self.address - self.memory.address, self.shape, self.dtype)

    def before(self, stream: Any) -> None:
        if self.behind is not None and stream is not None:
            vendor().order(self.behind, stream)


class OnDevice:
    """A communicator whose calls work on the device: arrays are copied there, the call is made, and all are copied back.

    So every test that is written for NumPy arrays says the same of device memory.
    """

    def __init__(self, comm: isthmus.Comm) -> None:
        self.comm = comm

    def ring(self, x: np.ndarray, out: np.ndarray, following: int, before: int, tag: int) -> None:
        """Sends x to one rank and receives out from another, in one group."""
        there, back = DeviceArray.of(x), DeviceArray.of(out)
        with isthmus.group():
            self.comm.recv(back, before, tag=tag)
            self.comm.send(there, following, tag=tag)
        out[...] = back.get()

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


def expect_ways(topology: Mapping[str, Any]) -> None:
    """Ranks of one island share memory; between islands, by label or by the devices' maker, goes what was asked for."""
    name = {rank: island["name"] for island in topology["islands"] for rank in island["ranks"]}
    for link in topology["links"]:
        over_tcp = topology["bridge"] == "tcp" and name[link["to"]] != name[topology["rank"]]
        assert link["kind"] == ("self" if link["to"] == topology["rank"] else "tcp" if over_tcp else "memory"), topology


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
    fresh: bool = False,
    modules: Sequence[str] = (),
) -> list[Any]:
    """body(comm, *arguments) on the ranks of a rehearsed fleet; the results by rank. See ranks.run_processes.

    AMD's devices are of a kind whose float8 is everybody's, where `switches` do not say otherwise.
    A switch "1:FAIL" is rank 1's alone (rehearse.start). `modules` are what ranks have imported before they are forked.
    """

    def start(command: list[str], variables: Mapping[str, str]) -> launch.Job:
        with mock.patch.dict(os.environ, {**variables, **(env or {})}):
            return rehearse.start(command, fleet, bridge=bridge, switches={"QUIET": "1", "GFX": "950", **(switches or {})})

    options: dict[str, Any] = {"fresh": fresh, "modules": modules, "complaint": "misuse"}
    return run_task(start, body, arguments, init=init, timeout=timeout, expect=expect or {}, **options)


_KINDS = ("stream", "event", "communicator", "allocation", "registration")
# What a process keeps of its devices, however many communicators it had: the pages with the words that streams wait for.
# AMD's have one word each, three for each communicator that there was at one time.
_KEPT = {"cuda": {"registration": 1}, "hip": {"registration": 1, "allocation": 3}, "acl": {}}


def left_over(communicators: int = 1) -> dict[str, int]:
    """What the process has on its device beyond what it keeps. The last of it goes when the others have left, too."""
    engine = ctypes.CDLL("librehearsal.so")
    engine.rehearsal_live.restype = ctypes.c_size_t
    kept = dict(_KEPT[os.environ["ISTHMUS_DEVICE"].split(":")[0]])
    if os.environ.get("REHEARSAL_CUDA_NO_STREAM_VALUES"):
        kept = {}  # its streams wait for no words
    if "allocation" in kept:
        kept["allocation"] *= communicators
    until = time.monotonic() + patient(8)
    while True:
        left = {kind: int(engine.rehearsal_live(kind.encode())) - kept.get(kind, 0) for kind in _KINDS}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.01)
