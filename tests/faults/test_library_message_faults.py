"""Messages that the vendor's library has, when a rank is killed, aborts, or does not let its device come to them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON, patient

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, run_fleet, vendor
from events import until

COUNT = 300_000
DEADLINE = patient(8)  # which has to pass


def exchange(fault: str, told: str) -> tuple[str, str, float]:
    """Rank 1's device does not come to the messages, which both ranks gave to the library. What both hear, and when."""
    comm = isthmus.init(settings={"GROUP_WAIT_MS": 60000})
    other = 1 - comm.rank
    there, back = (DeviceArray.of(np.ones(COUNT, np.float32)) for _ in range(2))
    with isthmus.group():  # the library's first call may wait for all that the device has to do
        comm.send(there, other)
        comm.recv(back, other)
    if fault == "deadline" and comm.rank == 0:
        comm.set_timeout(DEADLINE)
    stream = vendor().stream()
    go_on = vendor().hold(stream) if comm.rank else lambda: None
    begun = time.monotonic()
    group = isthmus.group(async_op=True)
    with group:
        comm.send(there, other, stream=stream)
        comm.recv(back, other, stream=stream)
    assert group.work is not None
    assert comm.topology()["library_messages"]["messages"] == 4
    if comm.rank == 0:
        (Path(told) / "given").touch()
    else:
        until((Path(told) / "given").exists, "the other rank's group")
    if comm.rank and fault == "kill":
        os.kill(os.getpid(), 9)
    if comm.rank and fault == "abort":
        comm.abort("enough")
    if comm.rank and fault in ("abort", "deadline"):  # else the messages may end before the other rank hears of it
        until((Path(told) / "0").exists, "the other rank's error")
    go_on()
    with pytest.raises(isthmus.Error) as said:
        group.work.wait()
    took = time.monotonic() - begun
    (Path(told) / str(comm.rank)).touch()
    comm.destroy()
    return said.type.__name__, str(said.value), took


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2", "ascend:2"])
def test_a_killed_rank_ends_the_other_sides_messages_in_the_library(fleet: str, tmp_path: Path) -> None:
    first, killed = run_fleet(fleet, exchange, "kill", str(tmp_path), init=False, expect={1: -9})
    assert killed is None
    kind, text, took = first
    assert kind == "PeerLostError" and "rank 1" in text, text
    assert took < SOON


@pytest.mark.parametrize("fleet", ["nvidia:2", "ascend:2"])
def test_an_abort_ends_the_messages_that_the_library_has_on_all_ranks(fleet: str, tmp_path: Path) -> None:
    for kind, text, took in run_fleet(fleet, exchange, "abort", str(tmp_path), init=False):
        assert kind == "AbortedError" and "enough" in text, text
        assert took < SOON


@pytest.mark.parametrize("fleet", ["nvidia:2", "ascend:2"])
def test_a_message_that_does_not_end_in_the_library_fails_at_its_deadline_and_says_where_it_is(
    fleet: str, tmp_path: Path
) -> None:
    found: list[Any] = run_fleet(fleet, exchange, "deadline", str(tmp_path), init=False)
    for kind, text, _ in found:
        assert kind == "TimeoutError", text
        assert f"both ranks have given it to {'hccl' if fleet.startswith('ascend') else 'nccl'}" in text, text
    assert DEADLINE < found[0][2] < DEADLINE + SOON
