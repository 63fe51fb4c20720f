"""A process group of a build of PyTorch, of which pytorch_calls.py says the calls, and tensors of a simulated device.

The build is that of $VENDOR, its version $TORCH. $NONBLOCKING stands for TORCH_NCCL_USE_COMM_NONBLOCKING, and $EAGER for
`device_id`.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from every_type import packed
from on_device import AMD, fetched, hand_out, handed, on_device, runtime, sound, work_on_the_device
from patience import SOON
from pytorch_calls import CONFIG, CUDA, NO_COLOR, OLD, ROCM, UNDEFINED, blocking, calls, color

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
VERSION = os.environ["TORCH"]
BUILD = ROCM if AMD else CUDA
NONBLOCKING, EAGER = "NONBLOCKING" in os.environ, "EAGER" in os.environ
IN_PROGRESS = 7
Array = NDArray[Any]
# What a word of the record is in one operation: its name, the other rank, and the stream.
Calls = Callable[[str, int, int], None]

library = ctypes.CDLL("librccl.so.1" if AMD else "libnccl.so.2")
library.ncclGetLastError.restype = library.ncclGetErrorString.restype = ctypes.c_char_p


# ---- the device --------------------------------------------------------------------------------------------------------

RUNTIME = {
    "stream": ("cuStreamCreateWithPriority", "hipStreamCreateWithPriority"),
    "event": ("cuEventCreate", "hipEventCreateWithFlags"),
    "record": ("cuEventRecord", "hipEventRecord"),
    "wait": ("cuStreamWaitEvent", "hipStreamWaitEvent"),
    "query": ("cuEventQuery", "hipEventQuery"),
    "synchronize": ("cuStreamSynchronize", "hipStreamSynchronize"),
}
NOT_READY = 600  # of both runtimes


def device(what: str, *words: Any) -> int:
    name = RUNTIME[what][AMD]
    code: int = getattr(runtime, name)(*words)
    if what != "query":
        sound(code, name)
    return code


def stream(priority: int = 0) -> int:
    """It does not wait for the null stream, as none of torch's pool does."""
    made = ctypes.c_void_p()
    device("stream", ctypes.byref(made), 1, priority)
    return made.value or 0


def event() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    device("event", ctypes.byref(made), 2)  # without timing
    return made


def copy(to: ctypes.c_void_p, place: ctypes.c_void_p, nbytes: int, on: int) -> None:
    size, where = ctypes.c_size_t(nbytes), ctypes.c_void_p(on)
    if AMD:
        sound(runtime.hipMemcpyAsync(to, place, size, 3, where), "hipMemcpyAsync")
    else:
        sound(runtime.cuMemcpyDtoDAsync_v2(to, place, size, where), "cuMemcpyDtoDAsync")


def hold(on: int) -> Callable[[], None]:
    """What is given to the stream from now on waits until the function that this gives is called."""
    where, place = ctypes.c_void_p(on), ctypes.c_void_p()
    if AMD:
        sound(runtime.hipExtMallocWithFlags(ctypes.byref(place), ctypes.c_size_t(8), 2), "hipExtMallocWithFlags")
        word = ctypes.c_uint64.from_address(place.value or 0)
        word.value = 0
        mask = ctypes.c_uint64(2**64 - 1)
        sound(runtime.hipStreamWaitValue64(where, place, ctypes.c_uint64(1), 0, mask), "hipStreamWaitValue64")
    else:
        page = mmap.mmap(-1, 4096)
        word = ctypes.c_uint64.from_buffer(page)
        sound(runtime.cuMemHostRegister_v2(ctypes.byref(word), ctypes.c_size_t(4096), 2), "cuMemHostRegister")
        sound(runtime.cuMemHostGetDevicePointer_v2(ctypes.byref(place), ctypes.byref(word), 0), "cuMemHostGetDevicePointer")
        sound(runtime.cuStreamWaitValue64_v2(where, place, ctypes.c_uint64(1), 0), "cuStreamWaitValue64")

    def release() -> None:
        word.value = 1

    return release


class Tensor:
    """Memory of the device. A stream writes its values, and a stream reads them into other memory, as kernels would."""

    def __init__(self, values: Array, kind: str = "float32", on: int = 0, written: bool = True) -> None:
        self.kind, self.values = kind, packed(values, kind)
        if not self.values.size:  # torch has no memory for it
            self.place = self.read = ctypes.c_void_p()
            return
        self.source = on_device(self.values)
        self.place = on_device(np.zeros_like(self.values))
        self.read = on_device(np.zeros_like(self.values))
        if written:
            self.write(on)

    def write(self, on: int = 0) -> None:
        copy(self.place, self.source, self.values.nbytes, on)

    def keep(self, on: int = 0) -> None:
        """What the stream finds there, once it comes to this."""
        copy(self.read, self.place, self.values.nbytes, on)

    def at(self, first: int) -> ctypes.c_void_p:
        return ctypes.c_void_p((self.place.value or 0) + first * self.values.itemsize)

    def is_now(self, right: Array, what: str, on: int = 0) -> None:
        """What the stream finds there."""
        if self.values.size:
            self.keep(on)
            self.kept(right, what, on)

    def kept(self, right: Array, what: str, on: int = 0) -> None:
        device("synchronize", ctypes.c_void_p(on))
        expected = packed(np.asarray(right), self.kind)
        got = np.frombuffer(fetched(self.read.value, self.values.nbytes), self.values.dtype)[: expected.size]
        assert (got == expected.ravel()).all(), f"{what}: {got[:9]} is not {expected.ravel()[:9]}"


# ---- process groups ----------------------------------------------------------------------------------------------------


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def config() -> ctypes.Array[ctypes.c_char]:
    """ncclConfig_t as the build's header has it: its head, `blocking`, and what is not set."""
    size, version = CONFIG[VERSION, BUILD]
    members = np.full(size // 4, UNDEFINED, np.int32)
    members[:4] = np.array([size, 0, np.uint32(0xCAFEBEEF).view(np.int32), version], np.int64).astype(np.int32)
    members[4] = blocking(VERSION, NONBLOCKING)
    members[8:10] = members[12:14] = 0  # netName, commName
    return ctypes.create_string_buffer(members[: size // 4].tobytes(), size)


def right(code: int, what: str) -> None:
    assert code == 0, f"{what} gave {code}: {library.ncclGetErrorString(code)}, {library.ncclGetLastError(None)}"


class Watchdog:
    """A thread that asks for the works of a group, as that of ProcessGroupNCCL does each 100 ms."""

    def __init__(self, group: Group) -> None:
        self.group, self.works, self.seen = group, list[ctypes.c_void_p](), 0
        self.error, self.ends = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        work_on_the_device()
        (name,), state = calls(VERSION, BUILD, "watch"), ctypes.c_int()
        while not self.ends.wait(0.02) and not self.seen:
            if not self.works:
                continue
            # Before the question: a failure lets the streams run on, and ends works that are no successes.
            ended = list(itertools.takewhile(lambda work: device("query", work) == 0, list(self.works)))
            right(getattr(library, name)(self.group.comm, ctypes.byref(state)), name)
            if state.value not in (0, IN_PROGRESS):
                self.seen = state.value
                self.error.set()
            del self.works[: len(ended)]

    def end(self) -> None:
        self.ends.set()
        self.thread.join(SOON)
        assert not self.thread.is_alive()


class Group:
    def __init__(self, name: str, ranks: tuple[int, ...], part_of: Group | None = None, call: str = "new_group") -> None:
        self.name, self.ranks, self.part_of, self.call = name, ranks, part_of, call
        self.rank, self.size, self.root = ranks.index(RANK), len(ranks), 0
        self.comm, self.gone, self.current, self.own = ctypes.c_void_p(), False, 0, stream()
        self.events = {"begun": event(), "ended": event()}
        self.watchdog = Watchdog(self)
        if part_of or EAGER:
            self.play("split" if part_of else "init", self.made)

    def play(self, operation: str, word: Calls, on: int = 0) -> None:
        for line in calls(VERSION, BUILD, operation):
            self.say(line, word, on)

    def say(self, line: str, word: Calls, on: int) -> None:
        first, *rest = line.replace(",", "").split()
        streams, place = {"current": self.current, "own": self.own}, ctypes.c_void_p
        if first == "record":
            if rest[0] == "ended":
                self.events["ended"] = event()
            device("record", self.events[rest[0]], place(streams[rest[1]]))
            if rest[0] == "ended":
                self.watchdog.works.append(self.events["ended"])
        elif first == "wait":
            device("wait", place(streams[rest[0]]), self.events[rest[1]], 0)
        elif first == "synchronize":
            device("synchronize", place(streams[rest[0]]))
        elif first == "CALLS":
            word("CALLS", -1, streams[rest[0]])
        elif first == "each:":
            for peer, name in itertools.product(range(self.size), rest):
                word(name, peer, on)
        elif first in ("root:", "other:"):
            if (self.rank == self.root) == (first == "root:"):
                for name in rest:
                    word(name, -1, on)
        elif first in ("ncclGroupStart", "ncclGroupEnd"):
            self.checked(getattr(library, first)(), first)
        elif first == "ready" or (first == "nonblocking:" and NONBLOCKING):
            self.ready()
        elif first == "nonblocking:":
            return
        elif first == "init":
            self.play("init", self.made)
        else:
            word(first, -1, on)

    def checked(self, code: int, name: str) -> None:
        """C10D_NCCL_CHECK_TIMEOUT: a call that does not block is waited for."""
        assert code == 0 or (NONBLOCKING and code == IN_PROGRESS), f"{name} gave {code}: {library.ncclGetLastError(None)}"
        if code:
            self.ready()

    def ready(self) -> None:
        state, until = ctypes.c_int(IN_PROGRESS), time.monotonic() + SOON
        while state.value == IN_PROGRESS:
            assert time.monotonic() < until, f"{self.name} is not ready"
            right(library.ncclCommGetAsyncError(self.comm, ctypes.byref(state)), "ncclCommGetAsyncError")
            time.sleep(0.001)
        assert state.value == 0, f"{self.name}: {state.value}, {library.ncclGetLastError(self.comm)}"

    def made(self, name: str, _: int, __: int) -> None:
        """One call of those that make the communicator."""
        id_file, own = FOLDER / f"id-{self.name}", config()
        if name == "ncclGetUniqueId":
            unique_id = UniqueId()
            right(library.ncclGetUniqueId(ctypes.byref(unique_id)), name)
            hand_out(id_file, bytes(unique_id))
        elif name == "ncclCommInitRankConfig":
            unique_id = UniqueId.from_buffer_copy(handed(id_file))
            code = library.ncclCommInitRankConfig(ctypes.byref(self.comm), self.size, unique_id, self.rank, own)
            assert code == 0 or (NONBLOCKING and code == IN_PROGRESS), f"{code}, {library.ncclGetLastError(None)}"
        else:
            assert self.part_of and name == "ncclCommSplit", name
            its_color = color(VERSION, self.ranks, self.call)
            code = library.ncclCommSplit(self.part_of.comm, its_color, self.rank, ctypes.byref(self.comm), own)
            if VERSION in OLD:
                right(code, name)  # ncclInProgress is an error
            else:
                self.part_of.checked(code, name)

    def no_color(self) -> None:
        """performNocolorSplit, of a rank that is not in the part."""
        none = ctypes.c_void_p()
        self.checked(library.ncclCommSplit(self.comm, NO_COLOR, self.rank, ctypes.byref(none), config()), "ncclCommSplit")
        assert none.value is None

    def operate(self, operation: str, word: Calls, asynchronous: bool = False) -> Callable[[], None]:
        """Gives what `wait` of the work does."""
        if not self.comm.value:
            self.play("init", self.made)

        def inner(_: str, __: int, on: int) -> None:
            self.play(operation, word, on)

        self.play("async" if asynchronous else "sync", inner)
        ended = self.events["ended"]

        def wait() -> None:
            self.events["ended"] = ended
            self.play("async wait", inner)

        return wait if asynchronous else lambda: None

    def destroy(self) -> None:
        def word(name: str, _: int, __: int) -> None:
            if name != "ncclCommFinalize":
                self.watchdog.end()  # before the communicator is gone
                self.gone = True
            self.checked(getattr(library, name)(self.comm), name)

        self.play("destroy", word)

    def abort(self) -> None:
        """By another thread, as std::async does it."""
        failed: list[BaseException] = []
        self.watchdog.end()
        self.gone = True

        def run() -> None:
            work_on_the_device()
            try:
                self.play("abort", lambda name, _, __: right(getattr(library, name)(self.comm), name))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(SOON)
        assert not thread.is_alive() and not failed, failed
