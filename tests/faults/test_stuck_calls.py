"""A thread that does not come back from a call of a driver, in which it gives its device work: everybody else goes on.

The device stands, and its driver is locked by a thread of the program that frees memory. So every other thread's calls wait.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON, patient

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from events import inside_a_call, once_inside, until, until_asleep

DEVICE = {"nvidia": "cuda", "amd": "hip", "ascend": "acl"}
CALLS = {
    "nvidia": r"cu[A-Z]\w+ \(NVIDIA driver\) on cuda:0|(all_reduce|reduce_scatter) \(nccl\) on cuda:0",
    "amd": r"hip[A-Z]\w+ \(AMD runtime\) on hip:0",
    "ascend": r"acl\w+ \(Ascend ACL\) on acl:0|(all_reduce|reduce_scatter) \(hccl\) on acl:0",
}
# The call that frees memory, and the first of an operation: about its memory, or its stream.
FREES = {"cuda": ["cuMemFree"], "hip": ["hipFree"], "acl": ["aclrtFree"]}
ASKS = {
    "cuda": ["cuPointerGetAttribute", "cuStreamIsCapturing"],
    "hip": ["hipPointerGetAttributes", "hipStreamIsCapturing"],
    "acl": ["aclrtPointerGetAttributes", "aclmdlRICaptureGetInfo"],
}
DEADLINE = 1  # of what hangs
AGAIN = patient(15)  # of an init beside it


def once_called(calls: dict[str, list[str]], thread: threading.Thread) -> None:
    """Starts the thread, which makes one of these calls and gets stuck there."""
    engine = ctypes.CDLL("librehearsal.so")
    engine.rehearsal_calls.restype = ctypes.c_ulong
    names = calls[os.environ["ISTHMUS_DEVICE"].split(":")[0]]

    def count() -> int:
        return sum(engine.rehearsal_calls(name.encode()) for name in names)

    before = count()
    thread.start()
    until(lambda: count() > before, f"a call of {names}")
    until_asleep(thread)


def stands() -> Callable[[], None]:
    """From now on the device stands, and a thread of the program has its driver locked, until the result is called."""
    memory, goes_on = vendor().allocate(4096), vendor().hold(vendor().stream())

    def free() -> None:
        vendor().here()
        vendor().free(memory)

    once_called(FREES, threading.Thread(target=free, daemon=True))
    return goes_on


class Call(threading.Thread):
    """A call on a thread of its own, and how it failed."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call, self.said = call, ""

    def run(self) -> None:
        try:
            self.call()
            self.said = "nothing failed"
        except isthmus.Error as error:
            self.said = str(error)


def after(call: Callable[[], object]) -> str:
    """How it failed, if it ends."""
    one = Call(call)
    one.start()
    one.join(SOON)
    return one.said or f"it has not ended in {SOON} s"


def all_reduce(comm: isthmus.Comm, x: Any, stream: int | None) -> None:
    comm.all_reduce(x, "max", x, stream=stream)


def send(comm: isthmus.Comm, x: Any, stream: int | None) -> None:
    comm.send(x, 1 - comm.rank, stream=stream)


def recv(comm: isthmus.Comm, x: Any, stream: int | None) -> None:
    comm.recv(x, 1 - comm.rank, stream=stream)


PEER = {all_reduce: all_reduce, send: recv, recv: send}


@pytest.mark.product(8)
@pytest.mark.parametrize(
    ("fleet", "what", "on_stream"),
    [
        ("nvidia:1,cpu:1", all_reduce, False),
        ("nvidia:2,cpu:1", all_reduce, False),
        ("nvidia:1,cpu:1", all_reduce, True),
        ("nvidia:1,cpu:1", send, False),
        ("nvidia:1,cpu:1", recv, False),
        ("amd:1,cpu:1", all_reduce, False),
        ("ascend:2,cpu:1", all_reduce, False),
        ("ascend:1,cpu:1", recv, True),
    ],
)
def test_a_caller_that_is_stuck_holds_up_nobody_else(
    tmp_path: Path, fleet: str, what: Callable[..., None], on_stream: bool
) -> None:
    """Not another call of the communicator, nor its end, nor a new one; and it comes back when the driver lets it go."""

    def body(folder: str, what: Callable[..., None], on_stream: bool) -> None:
        comm = isthmus.init()
        answer: dict[str, Any] = {}
        stuck_now = Path(folder) / "stuck"

        def again() -> None:
            begun = time.monotonic()
            answer["again"] = after(lambda: isthmus.init(timeout=AGAIN).barrier())
            answer["refused"] = time.monotonic() - begun

        x: Any = np.ones(160_000, np.float32)
        if on_host():
            all_reduce(comm, x, None)
            until(stuck_now.exists)
            comm.set_timeout(DEADLINE)
            answer["said"] = after(lambda: (PEER[what](comm, x, None), comm.barrier()))
            comm.destroy()
            again()
        else:
            x = DeviceArray.of(x)
            stream = vendor().stream() if on_stream else None
            all_reduce(comm, x, stream)
            goes_on = None
            if comm.rank == 0:
                goes_on = stands()
            else:
                until(stuck_now.exists)
            comm.set_timeout(DEADLINE)
            stuck = Call(lambda: what(comm, x, stream))
            once_called(ASKS, stuck)
            stuck_now.touch()
            answer["said"] = after(comm.barrier)
            begun = time.monotonic()
            comm.abort("seen")
            comm.destroy()
            answer["destroyed"] = time.monotonic() - begun
            again()
            answer["abandoned"] = isthmus.context_stats()["abandoned_threads"]
            if goes_on:
                goes_on()
            stuck.join(SOON)
            answer["stuck"] = stuck.said
        (Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}").write_text(json.dumps(answer))

    # With rare heartbeats a rank that is asked at a deadline is not silent for several of them.
    run_fleet(fleet, body, str(tmp_path), what, on_stream, init=False, env={"ISTHMUS_HEARTBEAT_MS": "5000"})
    ranks = [json.loads(said.read_text()) for said in sorted(tmp_path.glob("said.*"))]
    device, name = ranks[0], DEVICE[fleet.split(":")[0]]
    for rank in ranks:
        # Who comes first may give up before it is known, as may a rank of its island whom it lets wait.
        refused = rf".*init of 'world' on rank 0: {name}:0 hangs: .* has not come back from it.*; start a new process"
        early = "did not take part|not all 2 ranks of the island joined in time|did not connect within"
        assert re.match(refused, rank["again"]) or (len(ranks) > 2 and re.search(early, rank["again"])), rank
        assert rank["refused"] < AGAIN + SOON, rank
        by_worker = what is recv and not on_stream  # then no call of the program's is in the driver
        if not by_worker:
            assert "rank 0 (pid " in rank["said"] and re.search(CALLS[fleet.split(":")[0]], rank["said"]), rank
    assert device["destroyed"] < SOON and device["abandoned"] >= 1, device
    assert device["stuck"] and "nothing failed" not in device["stuck"] and "came back too late" not in device["stuck"], (
        device
    )


@pytest.mark.parametrize("fleet", ["nvidia:1,cpu:1", "amd:1,cpu:1", "ascend:1,cpu:1"])
def test_a_device_that_answered_too_late_once_is_asked_again(tmp_path: Path, fleet: str) -> None:
    """Its driver was locked for longer than anybody waits. Later the device is reset, which only an answer tells."""

    def body(folder: str) -> str:
        failed, comm = Path(folder) / "failed", isthmus.init()
        x: Any = np.ones(160_000, np.float32)
        x = x if on_host() else DeviceArray.of(x)
        all_reduce(comm, x, None)
        if not on_host():
            caller, memory, goes_on = threading.current_thread(), vendor().allocate(4096), vendor().hold(vendor().stream())

            def free() -> None:
                vendor().here()
                vendor().free(memory)

            def too_late() -> None:
                until_asleep(caller, 4)  # what it calls for is on the device
                once_called(FREES, threading.Thread(target=free, daemon=True))
                until(lambda: isthmus.context_stats()["abandoned_threads"], "a question without an answer")
                goes_on()

            once_inside(comm, too_late)
        all_reduce(comm, x, None)
        if on_host():
            until(failed.exists)
        last = Call(lambda: all_reduce(comm, x, None))
        last.start()
        if not on_host():
            until(lambda: inside_a_call(comm), "the last operation")
            until_asleep(last, 4)
            vendor().here()
            vendor().reset()
        last.join(SOON)
        failed.touch()
        return last.said

    for said in run_fleet(fleet, body, str(tmp_path), init=False):
        assert "the device of rank 0" in said and "has failed" in said, said


@pytest.mark.parametrize(("fleet", "late"), [("nvidia:1,cpu:1", 0.0), ("amd:1,cpu:1", 1.0), ("ascend:1,cpu:1", 1.0)])
def test_a_new_communicator_beside_the_end_of_one_whose_device_hangs_is_refused(
    tmp_path: Path, fleet: str, late: float
) -> None:
    """Before it is known that the device hangs: the calls that end what was there have not come back, and may yet."""

    def body(folder: str, late: float) -> None:
        comm = isthmus.init()
        x: Any = np.ones(160_000, np.float32)
        if not on_host():
            x = DeviceArray.of(x)
            vendor().hold(vendor().stream())
        comm.barrier()
        comm.set_timeout(DEADLINE)
        first = after(lambda: all_reduce(comm, x, None))
        ends = Call(comm.destroy)
        ends.start()
        if not on_host():
            until_asleep(ends)  # in a call that does not come back
        time.sleep(late)
        begun = time.monotonic()
        said = after(lambda: isthmus.init(timeout=AGAIN).barrier())
        took = time.monotonic() - begun
        ends.join(SOON)
        answer = {"first": first, "said": said, "took": took, "ended": ends.said}
        (Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}").write_text(json.dumps(answer))
        os._exit(0)

    run_fleet(fleet, body, str(tmp_path), late, init=False)
    for rank in range(2):
        answer = json.loads((tmp_path / f"said.{rank}").read_text())
        name = DEVICE[fleet.split(":")[0]]
        assert f"within {DEADLINE} s" in answer["first"], answer
        # Whoever came to init first may have given up before it was known.
        refused = rf".*init of 'world' on rank 0: {name}:0 hangs: .* has not come back from it.*; start a new process"
        assert re.match(refused, answer["said"]) or (rank == 1 and "rank 0 of 2" in answer["said"]), answer
        assert answer["took"] < AGAIN + SOON and answer["ended"] == "nothing failed", answer
