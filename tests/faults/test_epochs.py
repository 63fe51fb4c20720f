"""A new epoch keeps what did not change: libraries' communicators of untouched islands, and what devices have registered."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from events import until

REGISTER = ("cuMemHostRegister", "hipHostRegister", "aclrtHostRegister")
INIT = ("ncclCommInitRankConfig", "ncclCommInitRank", "HcclCommInitRootInfoConfig", "HcclCommInitRootInfo")


def calls(names: tuple[str, ...]) -> int:
    if on_host():
        return 0
    vendor()  # with it the simulation is loaded
    count = ctypes.CDLL("librehearsal.so").rehearsal_calls
    count.restype = ctypes.c_ulong
    return sum(count(name.encode()) for name in names)


def made() -> np.ndarray[Any, Any]:
    """How many communicators of libraries this process has made, and how much memory its device has registered."""
    return np.array([calls(INIT), calls(REGISTER)])


def summed(comm: isthmus.Comm, count: int = 100_000) -> float:
    x: Any = np.full(count, comm.rank + 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    comm.all_reduce(there, "sum", there)
    found = x if on_host() else there.get()
    assert (found == found[0]).all()
    return float(found[0])


def sent_round(comm: isthmus.Comm) -> None:
    """Every rank sends to the next one, in a group: inside of an island the library carries it."""
    x: Any = np.full(1000, comm.rank, np.float32)
    out, there = (x.copy(), x) if on_host() else (DeviceArray.of(x), DeviceArray.of(x))
    with isthmus.group():
        comm.send(there, (comm.rank + 1) % comm.size)
        comm.recv(out, (comm.rank - 1) % comm.size)
    assert ((out if on_host() else out.get()) == (comm.rank - 1) % comm.size).all()


def islands(comm: isthmus.Comm) -> list[list[int]]:
    return [island["ranks"] for island in comm.topology()["islands"]]


def all_idle(comm: isthmus.Comm, folder: str, what: str) -> None:
    """No rank goes on before every rank has ended its operations: one that has left a barrier says nothing of the others."""
    (Path(folder) / f"{what} {comm.rank}").touch()
    until(lambda: all((Path(folder) / f"{what} {rank}").exists() for rank in range(comm.size)))


def shrinks(comm: isthmus.Comm, lost: int, how: str, folder: str) -> Any:
    """(what the shrink and the first operations behind it have made, the islands) of a rank that is left."""
    summed(comm)
    sent_round(comm)
    all_idle(comm, folder, "idle")
    before = made()
    if comm.rank == lost:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        comm.destroy()
        (Path(folder) / "left").touch()
        return None
    if how == "left":
        until((Path(folder) / "left").exists)
    rest = comm.shrink(failed=[lost])
    assert summed(rest) == rest.size * (rest.size + 1) / 2
    sent_round(rest)
    comm.destroy()
    assert summed(rest) == rest.size * (rest.size + 1) / 2
    return (made() - before).tolist(), islands(rest)


@pytest.mark.parametrize("bridge", ["auto", "tcp"])
@pytest.mark.parametrize("how", ["killed", "left"])
@pytest.mark.parametrize(
    ("fleet", "inits"),
    [
        ("nvidia:2,amd:2", [0, 0, 0]),  # amd's other rank is an island of one, which no library serves
        ("nvidia:2,amd:3", [0, 0, 1, 1]),
        ("ascend:2,nvidia:2", [0, 0, 0]),
        ("amd:2,ascend:3", [0, 0, 1, 1]),
    ],
)
def test_an_island_that_lost_no_rank_keeps_its_librarys_communicator_and_no_device_registers_anything(
    tmp_path: Path, fleet: str, inits: list[int], how: str, bridge: str
) -> None:
    lost = len(inits)
    expect = {lost: -signal.SIGKILL} if how == "killed" else {}
    found = run_fleet(fleet, shrinks, lost, how, str(tmp_path), bridge=bridge, expect=expect)
    assert [made for made, _ in found[:lost]] == [[n, 0] for n in inits]
    assert [of for _, of in found[:lost]] == [[[0, 1], list(range(2, lost))]] * lost


def state_of(pid: int) -> str:
    """As the kernel says it: T is stopped, Z has ended, and so has what is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def stops(comm: isthmus.Comm, lost: int, how: str, folder: str) -> Any:
    """How much this rank's device has registered for the next epoch, where another rank has stopped before an operation."""
    summed(comm)
    all_idle(comm, folder, "idle")
    before = made()
    place = Path(folder) / "pid"
    if comm.rank == lost:
        (Path(folder) / "written").write_text(str(os.getpid()))
        (Path(folder) / "written").rename(place)
        os.kill(os.getpid(), signal.SIGSTOP)  # and it goes no further
    until(place.exists)
    pid = int(place.read_text())
    until(lambda: state_of(pid) == "T")
    x: Any = np.full(100_000, 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    work = comm.all_reduce(there, "sum", there, async_op=True)  # which the one that has stopped may still come to
    all_idle_but(comm, lost, folder, "in it")
    if how == "killed":
        if comm.rank == 0:
            os.kill(pid, signal.SIGKILL)
        until(lambda: state_of(pid) == "Z")
    rest = comm.shrink(failed=[lost])
    with pytest.raises(isthmus.Error):
        work.wait()
    registered = int((made() - before)[1])
    assert summed(rest) == rest.size * (rest.size + 1) / 2
    all_idle(rest, folder, "done")
    if comm.rank == 0 and how == "stopped":
        os.kill(pid, signal.SIGKILL)
    return registered


def all_idle_but(comm: isthmus.Comm, lost: int, folder: str, what: str) -> None:
    (Path(folder) / f"{what} {comm.rank}").touch()
    until(lambda: all((Path(folder) / f"{what} {rank}").exists() for rank in range(comm.size) if rank != lost))


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1,nvidia:1", "nvidia:2,amd:1"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_ring_to_which_a_process_may_still_come_that_is_only_stopped_is_not_the_next_epochs_until_it_has_been_killed(
    tmp_path: Path, fleet: str, how: str
) -> None:
    found = run_fleet(fleet, stops, 2, how, str(tmp_path), expect={2: -signal.SIGKILL})
    if how == "killed":
        assert found[:2] == [0, 0]
    else:
        assert min(found[:2]) > 0


def member_or_newcomer(folder: str, members: int) -> Any:
    rank, place = int(os.environ["RANK"]), Path(folder) / "ticket"
    if rank >= members:
        until(place.exists)
        comm = isthmus.join(place.read_text())
        sent_round(comm)
        return summed(comm), islands(comm), [0, 0]
    comm = isthmus.init(rank, members)
    summed(comm)
    sent_round(comm)
    if rank == 0:
        written = Path(folder) / "written"
        written.write_text(comm.ticket())
        written.rename(place)
    until(place.exists)
    before = made()
    comm.reconfigure(ticket=place.read_text())
    sent_round(comm)
    return summed(comm), islands(comm), (made() - before).tolist()


@pytest.mark.parametrize("bridge", ["auto", "tcp"])
@pytest.mark.parametrize(
    ("fleet", "of", "inits", "reached"),
    [
        ("nvidia:2,amd:1", [[0, 1], [2]], 0, 1),
        ("amd:2,ascend:1", [[0, 1], [2]], 0, 1),
        ("ascend:2,cpu:1", [[0, 1], [2]], 0, 0),  # these devices do not reach memory of other processes
        ("nvidia:3", [[0, 1, 2]], 1, 1),
    ],
)
def test_a_newcomer_costs_the_old_members_the_registration_of_its_ring_and_its_own_island_the_library(
    tmp_path: Path, fleet: str, of: list[list[int]], inits: int, reached: int, bridge: str
) -> None:
    found = run_fleet(fleet, member_or_newcomer, str(tmp_path), 2, init=False, bridge=bridge)
    assert [(total, there) for total, there, _ in found] == [(6.0, of)] * 3
    rings = 0 if bridge == "tcp" and len(of) > 1 else reached  # islands that TCP joins share no memory
    assert [made for *_, made in found] == [[inits, rings], [inits, rings], [0, 0]]


def breaks(comm: isthmus.Comm, folder: str) -> Any:
    """An operation stands in the library when the epoch ends: rank 2 never comes to it."""
    if comm.rank == 2:
        with suppress(isthmus.AbortedError):  # the others may abort before it has ended here
            summed(comm)
        return None
    summed(comm)
    before = made()
    x: Any = np.full(200_000, 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    work = comm.all_reduce(there, "sum", there, async_op=True)
    comm.set_timeout(60)
    (Path(folder) / str(comm.rank)).touch()  # before either aborts, the first operation has ended on both
    until((Path(folder) / str(1 - comm.rank)).exists)
    comm.abort("the test")
    with pytest.raises(isthmus.Error):
        work.wait()
    comm.reconfigure([2])
    return (made() - before).tolist(), summed(comm)


def test_a_library_in_which_an_operation_stood_is_made_anew(tmp_path: Path) -> None:
    found = run_fleet("nvidia:2,amd:1", breaks, str(tmp_path))
    assert found[:2] == [([1, 0], 3.0)] * 2


def again(comm: isthmus.Comm, times: int) -> Any:
    """Many epochs of the same ranks: nothing is made, and nothing piles up."""
    summed(comm)
    sent_round(comm)
    before = made()
    for _ in range(times):
        comm.reconfigure()
        assert summed(comm) == comm.size * (comm.size + 1) / 2
        sent_round(comm)
    return (made() - before).tolist()


@pytest.mark.parametrize("fleet", ["nvidia:2,amd:2", "nvidia:2,ascend:2,cpu:1", "nvidia:3"])
def test_an_epoch_of_the_same_ranks_makes_nothing_however_often(fleet: str) -> None:
    found = run_fleet(fleet, again, 5)
    assert found == [[0, 0]] * len(found)
