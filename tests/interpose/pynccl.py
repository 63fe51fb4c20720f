"""One rank, as Python programs come to the library: opened by name, functions by getattr, all by ctypes.

pynccl.py RANK RANKS FOLDER CASE, on simulated devices. Prints what the case found, as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from every_type import all_are_done, every_type
from on_device import AMD, fetched, hand_out, handed, on_device, work_on_the_device
from patience import SOON

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
FLOAT, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """As far as NCCL 2.27 had it."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int), ("max_ctas", ctypes.c_int), ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int), ("traffic_class", ctypes.c_int), ("comm_name", ctypes.c_char_p),
    ]  # fmt: skip


class CollConfig(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("ext", ctypes.c_void_p),
        ("hints", ctypes.c_int * 4), ("algorithm", ctypes.c_char_p), ("force", ctypes.c_int), ("more", ctypes.c_int * 3),
        ("event", ctypes.c_void_p),
    ]  # fmt: skip


class Team(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


class Value(ctypes.Union):
    _fields_ = [("i", ctypes.c_int), ("s", ctypes.c_char_p), ("raw", ctypes.c_void_p)]


class Extension(ctypes.Structure):
    _fields_ = [("next", ctypes.c_void_p), ("vendor", ctypes.c_int), ("option", ctypes.c_int), ("value", Value)]


library = ctypes.CDLL("librccl.so.1" if AMD else "libnccl.so.2")
library.ncclGetLastError.restype = ctypes.c_char_p


def sound(code: int, what: str) -> None:
    assert code == 0, f"{what} gave {code}: {library.ncclGetLastError(None)}"


def from_device(place: ctypes.c_void_p, count: int) -> list[float]:
    return [float(x) for x in np.frombuffer(fetched(place.value, 4 * count), np.float32)]


def unique_ids(count: int) -> ctypes.Array[UniqueId]:
    name, found = FOLDER / "id", (UniqueId * count)()
    if RANK == 0:
        for one in found:
            sound(library.ncclGetUniqueId(ctypes.byref(one)), "ncclGetUniqueId")
        hand_out(name, bytes(found))
    return (UniqueId * count).from_buffer_copy(handed(name))


def unique_id() -> UniqueId:
    return unique_ids(1)[0]


def init() -> ctypes.c_void_p:
    comm = ctypes.c_void_p()
    sound(library.ncclCommInitRank(ctypes.byref(comm), RANKS, unique_id(), RANK), "ncclCommInitRank")
    return comm


def all_reduce(comm: ctypes.c_void_p) -> list[float]:
    data = on_device(np.full(3, RANK + 1, np.float32))
    sound(library.ncclAllReduce(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None), "ncclAllReduce")
    return from_device(data, 3)


def plain() -> Any:
    comm = init()
    result = all_reduce(comm)
    sound(library.ncclCommDestroy(comm), "ncclCommDestroy")
    return result


def allocated() -> Any:
    """In memory of the library's, twice: from other memory, and in place."""
    comm, place = init(), ctypes.c_void_p()
    sound(library.ncclMemAlloc(ctypes.byref(place), ctypes.c_size_t(12)), "ncclMemAlloc")
    for source in (on_device(np.full(3, RANK + 1, np.float32)), place):
        sound(library.ncclAllReduce(source, place, ctypes.c_size_t(3), FLOAT, SUM, comm, None), "ncclAllReduce")
    result = from_device(place, 3)
    sound(library.ncclCommDestroy(comm), "ncclCommDestroy")
    sound(library.ncclMemFree(place), "ncclMemFree")
    return result


class Methods:
    """A communicator with the methods of CuPy's: addresses and streams are numbers, counts are long."""

    def __init__(self, comm: ctypes.c_void_p) -> None:
        self.comm = comm

    def __getattr__(self, name: str) -> Callable[..., None]:
        count_at = 1 if name in ("send", "recv", "bcast") else 2
        function = f"nccl{name[0].upper()}{name[1:]}"

        def call(*given: int) -> None:
            words: list[Any] = [ctypes.c_void_p(word) if at < count_at else word for at, word in enumerate(given[:-1])]
            words[count_at] = ctypes.c_size_t(given[count_at])
            sound(getattr(library, function)(*words, self.comm, ctypes.c_void_p(given[-1])), function)

        return call


def types() -> Any:
    """As in cupy_rank.py."""
    comm, part = init(), ctypes.c_void_p()

    def place(array: np.ndarray[Any, Any]) -> int:
        return on_device(array).value or 0

    group = library.ncclGroupStart, library.ncclGroupEnd
    wrong = every_type(Methods(comm), group, RANK, RANKS, place, fetched)
    sound(library.ncclCommSplit(comm, 0, -RANK, ctypes.byref(part), None), "ncclCommSplit")
    wrong += every_type(Methods(part), group, RANKS - 1 - RANK, RANKS, place, fetched)
    sound(library.ncclCommDestroy(part), "ncclCommDestroy")
    all_are_done(FOLDER, RANK, RANKS)
    sound(library.ncclCommAbort(comm), "ncclCommAbort")
    return None, wrong


def scalable() -> Any:
    """Several ids, and a configuration with a name."""
    comm, one = ctypes.c_void_p(), unique_id()
    ids = (UniqueId * 2)(one, one)
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22703, 1, *[-(2**31)] * 3, None, *[-(2**31)] * 2, b"the name")
    code = library.ncclCommInitRankScalable(ctypes.byref(comm), RANKS, RANK, 2, ids, ctypes.byref(config))
    sound(code, "ncclCommInitRankScalable")
    return all_reduce(comm)


def joined(found: UniqueId, rank: int, ranks: int) -> tuple[int, str]:
    """What the C library says to a rank that comes to the meeting of an id: the code, and the text of an error."""
    isthmus, meeting = ctypes.CDLL(os.environ["LIBISTHMUS"]), ctypes.c_void_p()
    isthmus.isthmus_last_error.restype = ctypes.c_char_p
    code = isthmus.isthmus_meeting_join(bytes(found)[56:], rank, ranks, ctypes.c_double(SOON), ctypes.byref(meeting))
    code = code or isthmus.isthmus_meeting_exchange(meeting, None, None, ctypes.c_size_t(0))
    text = isthmus.isthmus_last_error().decode() if code else ""
    isthmus.isthmus_meeting_leave(meeting)
    return code, text


def several_ids() -> Any:
    """One each, all of rank 0. No meeting of a further one goes on when the communicator is there."""
    ids = unique_ids(5)
    comm = ctypes.c_void_p()
    code = library.ncclCommInitRankScalable(ctypes.byref(comm), RANKS, RANK, len(ids), ids, None)
    sound(code, "ncclCommInitRankScalable")
    return [all_reduce(comm), [joined(one, 0, 1) for one in ids[1:]] if RANK == 0 else []]


def threads_of_isthmus() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            names.append((task / "comm").read_text().strip())
    return sorted(name for name in names if name.startswith("isthmus"))


def tcp_listeners(ids: Any) -> int:
    """Sockets of this process that listen, but for that of each id, which is the library's: its port stands in the id."""
    roots = {f"{int.from_bytes(bytes(one)[10:12], 'big'):04X}" for one in ids}
    ours = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            ours.add(os.readlink(entry))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [row[1].split(":")[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours]
    return sum(1 for port in listening if port not in roots)


def many_ids() -> Any:
    """Two thousand, of which the last and the first are used."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for the simulated library's
    ids = unique_ids(2000)
    until = time.monotonic() + SOON
    while RANK == 0 and not threads_of_isthmus() and time.monotonic() < until:  # it has not said its name
        time.sleep(0.01)
    cost, results = [threads_of_isthmus(), tcp_listeners(ids)], []
    for one in (ids[-1], ids[0]):
        comm = ctypes.c_void_p()
        sound(library.ncclCommInitRank(ctypes.byref(comm), RANKS, one, RANK), "ncclCommInitRank")
        results.append(all_reduce(comm))
        sound(library.ncclCommDestroy(comm), "ncclCommDestroy")
    return [cost, results]


def root_of_the_id() -> Any:
    """Whether the library's listener for the id ends, where Isthmus carries what is made with the id."""
    ids = unique_ids(1)
    comm = ctypes.c_void_p()
    sound(library.ncclCommInitRank(ctypes.byref(comm), RANKS, ids[0], RANK), "ncclCommInitRank")
    result = all_reduce(comm)
    until = time.monotonic() + SOON
    while tcp_listeners([]) != tcp_listeners(ids) and time.monotonic() < until:
        time.sleep(0.01)
    listens = tcp_listeners([]) != tcp_listeners(ids)
    sound(library.ncclCommDestroy(comm), "ncclCommDestroy")
    return [result, listens]


def with_config() -> Any:
    """The calls of NCCL 2.31 that take a configuration."""
    comm, data, told = init(), on_device(np.full(3, RANK + 1, np.float32)), []
    config = CollConfig(ctypes.sizeof(CollConfig), 0xCAFEBEEF, 23100)
    # To force is the vendor's default, and says nothing where no algorithm is asked for.
    for force, algorithm, event in ((1, None, None), (0, b"ring", None), (1, b"", None), (1, b"ring", None), (1, None, 64)):
        config.force, config.algorithm, config.event = force, algorithm, event
        given = ctypes.byref(config)
        code = library.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, given)
        told.append([code, (library.ncclGetLastError(comm) or b"").decode() if code else ""])
    sound(library.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, None), "without")
    return [told, from_device(data, 3)]


def every_config() -> Any:
    """Of each call that takes one, what this rank gets; rank r gives 100 r and so on."""
    comm, got = init(), {}
    config = CollConfig(ctypes.sizeof(CollConfig), 0xCAFEBEEF, 23100)

    def call(name: str, sends: int, receives: int, *middle: int) -> None:
        send = on_device(np.arange(sends, dtype=np.float32) + 100 * RANK)
        recv = on_device(np.full(receives, -1, np.float32))
        code = getattr(library, name)(send, recv, ctypes.c_size_t(2), FLOAT, *middle, comm, None, ctypes.byref(config))
        sound(code, name)
        got[name] = from_device(recv, receives)

    call("ncclAllReduceConfig", 2, 2, SUM)
    call("ncclReduceConfig", 2, 2, SUM, 1)
    call("ncclBroadcastConfig", 2, 2, 1)
    call("ncclAllGatherConfig", 2, 2 * RANKS)
    call("ncclReduceScatterConfig", 2 * RANKS, 2, SUM)
    call("ncclAlltoAllConfig", 2 * RANKS, 2 * RANKS)
    call("ncclGatherConfig", 2, 2 * RANKS, 1)
    call("ncclScatterConfig", 2 * RANKS, 2, 1)
    return got


def even() -> Any:
    """By the name that RCCL had for it before NCCL had the function."""
    comm = init()
    send, recv = on_device(np.arange(RANKS, dtype=np.float32) + 10 * RANK), on_device(np.zeros(RANKS, np.float32))
    sound(library.ncclAllToAll(send, recv, ctypes.c_size_t(1), FLOAT, comm, None), "ncclAllToAll")
    return from_device(recv, RANKS)


def configured(comm: ctypes.c_void_p, data: ctypes.c_void_p, *options: tuple[int, int, dict[str, Any]]) -> tuple[int, str]:
    """An all_reduce with these extensions, each a vendor, a number and a value."""
    chain = [Extension(None, vendor, number, Value(**value)) for vendor, number, value in options]
    for one, following in itertools.pairwise(chain):
        one.next = ctypes.addressof(following)
    first = ctypes.addressof(chain[0])
    config = CollConfig(ctypes.sizeof(CollConfig), 0xCAFEBEEF, 23100, first, force=1)
    if not options[-1][2]:
        chain[-1].next = first
    given = ctypes.byref(config)
    code = library.ncclAllReduceConfig(data, data, ctypes.c_size_t(3), FLOAT, SUM, comm, None, given)
    return code, (library.ncclGetLastError(comm) or b"").decode() if code else ""


def with_options() -> Any:
    """Isthmus' own, between others'. Then rank 0 makes a call that nobody else makes."""
    comm, data = init(), on_device(np.full(3, RANK + 1, np.float32))
    timeout, label = int(os.environ["TIMEOUT_OPTION"]), int(os.environ["LABEL_OPTION"])
    ours, other = int(os.environ["VENDOR_OF_OPTIONS"]), (77, timeout, {"i": -1})
    name = (ours, label, {"s": b"the step"})
    told: list[Any] = [configured(comm, data, other, name, (ours, timeout, {"i": 300_000}), other)]
    for wrong in ((ours, timeout, {"i": 0}), (ours, label, {"s": None}), (ours, 99, {"i": 1}), (77, 1, {})):
        told.append(configured(comm, data, other, wrong))
    told.append(from_device(data, 3))
    if RANK == 0:
        begun, state = time.monotonic(), ctypes.c_int()
        told.append(configured(comm, data, name, (ours, timeout, {"i": 300})))
        while state.value == 0 and time.monotonic() < begun + SOON:
            sound(library.ncclCommGetAsyncError(comm, ctypes.byref(state)), "ncclCommGetAsyncError")
            time.sleep(0.01)
        took, why = time.monotonic() - begun, library.ncclGetLastError(comm).decode()
        told += [state.value, took, why]
        (FOLDER / "over").touch()
    until = time.monotonic() + 2 * SOON
    while not (FOLDER / "over").exists() and time.monotonic() < until:
        time.sleep(0.01)
    library.ncclCommAbort(comm)
    return told


class Properties(ctypes.Structure):
    """As NCCL 2.29 had it, and what a newer one may have added."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int), ("device", ctypes.c_int), ("management", ctypes.c_int), ("more", ctypes.c_ubyte * 120),
    ]  # fmt: skip


def asked_at_init() -> Any:
    """What programs ask of a communicator when they have made it, and what they register with it then."""
    comm, told = init(), []
    for size, magic in ((ctypes.sizeof(Properties), 0xCAFEBEEF), (40, 0xCAFEBEEF), (40, 1), (8, 0xCAFEBEEF)):
        properties = Properties(size, magic, 22903, 7, 7, 7, 7, (ctypes.c_ubyte * 120)(*[7] * 120))
        code = library.ncclCommQueryProperties(comm, ctypes.byref(properties))
        found = [properties.rank, properties.ranks, properties.device, properties.management]
        told.append([code, *found, [properties.size, properties.magic, properties.version] == [size, magic, 22903]])
        told[-1].append(
            sorted(set(properties.more[: max(size - 32, 0)])) + sorted(set(properties.more[max(size - 32, 0) :]))
        )
    data, number = on_device(np.zeros(4096, np.float32)), ctypes.c_size_t(4096)
    for what, *flags in (("", ()), ("Window", 1)):
        handle = ctypes.c_void_p(64)
        more = [flags[0]] if what else []
        registered = getattr(library, f"ncclComm{what}Register")(comm, data, number, ctypes.byref(handle), *more)
        back = [getattr(library, f"ncclComm{what}Deregister")(comm, ctypes.c_void_p(h)) for h in (None, 64)]
        told.append([registered, handle.value, *back])
    return [told, library.ncclGetLastError(comm).decode(), all_reduce(comm)]


def too_long() -> Any:
    """Messages of more bytes than there are numbers for: 2 to the power of 64, 65 and 61."""
    comm = init()
    codes = [library.ncclSend(None, ctypes.c_size_t(1 << bits), 8, 1 - RANK, comm, None) for bits in (61, 62, 58)]
    return codes, all_reduce(comm)


def uneven() -> Any:
    """RCCL's exchange of blocks of different sizes: rank r sends s + 1 elements to rank s."""
    comm = init()
    sizes = ctypes.c_size_t * RANKS
    send_counts, recv_counts = sizes(*[s + 1 for s in range(RANKS)]), sizes(*[RANK + 1] * RANKS)
    send_displs = sizes(*[sum(range(s + 1)) for s in range(RANKS)])
    recv_displs = sizes(*[s * (RANK + 1) for s in range(RANKS)])
    send = on_device(np.concatenate([np.full(s + 1, 10 * RANK + s, np.float32) for s in range(RANKS)]))
    count = RANKS * (RANK + 1)
    recv = on_device(np.zeros(count, np.float32))
    name = os.environ["NAME"]
    code = getattr(library, name)(send, send_counts, send_displs, recv, recv_counts, recv_displs, FLOAT, comm, None)
    sound(code, name)
    return from_device(recv, count)


def all_of_the_process() -> Any:
    comms = (ctypes.c_void_p * 2)()
    sound(library.ncclCommInitAll(comms, 2, None), "ncclCommInitAll")
    count = ctypes.c_int()
    sound(library.ncclCommCount(ctypes.c_void_p(comms[1]), ctypes.byref(count)), "ncclCommCount")
    return count.value


def vendors_own() -> Any:
    """Whatever takes a communicator and is neither routed nor forwarded, with arguments that are no matter."""
    comm, told = init(), {}
    for name in os.environ["NAMES"].split():
        function = getattr(library, name)
        is_team = re.fullmatch("ncclTeam[A-Z][a-z]+|ncclTeamCftMultimem", name)
        function.restype = Team if is_team else ctypes.c_int
        given = function(*[comm] * (2 if is_team else 14))
        told[name] = [given.ranks if is_team else given, (library.ncclGetLastError(comm) or b"").decode()]
    return [told, all_reduce(comm)]


def strayed() -> Any:
    """The handle goes past the door to the library of $OF's own at $REAL: what each of $CALLS gave, and the last error then.

    Each of $DEADLY is made by a child: its exit status, or the signal that ended it.
    """
    comm, told, ended = init(), {}, {}
    if os.environ["VENDOR"] != os.environ["OF"]:
        return told, ended, all_reduce(comm)
    real, memory = ctypes.CDLL(os.environ["REAL"], mode=int(os.environ["MODE"])), ctypes.create_string_buffer(4096)
    real.ncclGetLastError.restype = ctypes.c_char_p

    def argument(kind: str) -> Any:
        """None that would be refused for itself before the communicator is looked at."""
        if kind == "Comm":
            return comm
        if kind.endswith("*"):
            return None if "CollConfig" in kind else memory
        return None if kind in ("Stream", "Window") else ctypes.c_size_t(8)

    for name, kinds in json.loads(os.environ["CALLS"]).items():
        code = getattr(real, name)(*map(argument, kinds))
        told[name] = [code, (real.ncclGetLastError(None) or b"").decode()]
    for name, kinds in json.loads(os.environ["DEADLY"]).items():
        child = os.fork()
        if child == 0:
            signal.alarm(int(SOON))
            os._exit(getattr(real, name)(*map(argument, kinds)))
        ended[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told, ended, all_reduce(comm)


def forked() -> Any:
    """The id is made before a fork, and its meeting is held behind it."""
    found = UniqueId()
    sound(library.ncclGetUniqueId(ctypes.byref(found)), "ncclGetUniqueId")
    child = os.fork()
    if child == 0:
        meeting, got = ctypes.c_void_p(), ctypes.create_string_buffer(8)
        isthmus = ctypes.CDLL(os.environ["LIBISTHMUS"])
        ticket = bytes(found)[56:]
        code = isthmus.isthmus_meeting_join(ticket, 0, 1, ctypes.c_double(10), ctypes.byref(meeting))
        code = code or isthmus.isthmus_meeting_exchange(meeting, b"question", got, ctypes.c_size_t(8))
        os._exit(0 if code == 0 and got.raw == b"question" else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


cases: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        plain,
        allocated,
        types,
        scalable,
        several_ids,
        many_ids,
        root_of_the_id,
        with_config,
        too_long,
        every_config,
        even,
        uneven,
        all_of_the_process,
        vendors_own,
        strayed,
        forked,
        with_options,
        asked_at_init,
    )
}
work_on_the_device()
print(json.dumps(cases[sys.argv[4]]()))
