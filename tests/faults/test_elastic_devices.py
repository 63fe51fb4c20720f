"""isthmus.elastic where the device or the vendor's library of one rank fails: that rank hears it, the others go on."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import isthmus
from isthmus import elastic
from jobs import Me, Zygote, job, results, until_failed
from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from devices import DeviceArray, on_host, run_fleet

STEPS = 40
BROKEN = (isthmus.DeviceError, isthmus.ResourceError, isthmus.SystemError)


def train(comm: isthmus.Comm) -> tuple[str, tuple[int, ...], int, list[int], bytes]:
    """How it ended, whom the error names, how many ranks were left, how many each step had, and what they hold."""
    state = elastic.State({"w": np.zeros(1000, np.float32), "log": np.zeros(STEPS, np.int64)})
    said, named, size = "finished", (), 0

    def step(comm: isthmus.Comm, number: int) -> None:
        x: Any = np.ones(160_000, np.float32)  # whole chunks of an island of two
        if not on_host():
            x = DeviceArray.of(x)
        comm.all_reduce(x)
        ones = x if on_host() else x.get()
        state["w"] = 2 * state["w"] + ones[:1000]
        state["log"][number] = int(ones[0])

    try:
        last = elastic.run(step, comm, state, steps=STEPS, quorum=elastic.Quorum(least=2, answer=SOON))
        size = last.size
        last.barrier()
        last.destroy()
    except isthmus.Error as error:
        said, named = type(error).__name__, error.ranks
    return said, named, size, state["log"].tolist(), state["w"].tobytes()


@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "kind"),
    [
        ("cpu:1,nvidia:1,cpu:1", "FAIL", "cuMemcpyAsync:9:700", "DeviceError"),
        ("nvidia:1,amd:1,cpu:1", "FAIL_LATE", "hipMemcpyAsync:9:700", "DeviceError"),
        ("nvidia:2,cpu:2", "FAIL", "cuMemcpyAsync:9:700", "DeviceError"),
    ],
)
def test_the_others_go_on_without_a_rank_whose_device_fails(
    fleet: str, switch: str, fault: str, kind: str
) -> None:
    """It is rank 1."""

    def body() -> Any:
        return train(isthmus.init())

    ends = run_fleet(fleet, body, init=False, switches={f"1:{switch}": fault})
    said, named, *_ = ends.pop(1)
    assert (said, named) == (kind, (1,))
    left = len(ends)
    for said, _, size, log, w in ends:
        assert (said, size) == ("finished", left)
        before = log.count(left + 1)
        assert before < STEPS and log == [left + 1] * before + [left] * (STEPS - before)
        assert w == ends[0][4]


def test_a_vendors_library_that_fails_may_have_failed_by_any_rank_and_ends_the_job_on_all() -> None:
    def body() -> Any:
        return train(isthmus.init())

    ends = run_fleet("nvidia:2,cpu:2", body, init=False, switches={"1:FAIL": "ncclReduceScatter:2:3"})
    assert [(said, named) for said, named, *_ in ends] == [("SystemError", ())] * 4


# ---- without a device: what a rank makes of such an error ------------------------------------------------------------


def fail(
    me: Me, comm: isthmus.Comm, kind: type[isthmus.Error], ranks: tuple[int, ...], holds: tuple[int, ...] = (0, 1, 2, 3)
) -> NoReturn:
    """The communicator fails on all ranks, as where a device or a library fails on one. These ranks know what has."""
    if me.rank == 1:
        comm.revoke("as if a device had failed")
    until_failed(comm)
    if me.rank not in holds:
        raise isthmus.AbortedError("what an operation says that was in flight")

    def broken() -> isthmus.Error:
        made = kind("a device has failed")
        made.ranks = ranks
        return made

    name, error = comm.name, isthmus.Comm.error.__get__
    isthmus.Comm.error = property(lambda self: broken() if self.name == name else error(self))  # type: ignore[misc]
    if me.rank == 2:
        raise isthmus.AbortedError("what an operation says that was in flight")
    raise broken()


def told(
    me: Me, kind: type[isthmus.Error], ranks: tuple[int, ...], lives: bool = False, holds: tuple[int, ...] = (0, 1, 2, 3)
) -> Any:
    state = elastic.State({"log": np.zeros(STEPS, np.int64)})
    whole = me.init()

    def step(comm: isthmus.Comm, number: int) -> None:
        state["log"][number] = comm.all_reduce(np.ones(1))[0]
        if number == 3 and comm.size == 4:
            fail(me, comm, kind, ranks, holds)

    try:
        last = elastic.run(step, whole, state, steps=STEPS)
    except isthmus.Error as error:
        said = type(error).__name__, error.ranks, state.step
        if lives:
            me.send("told", said)
            me.hear()
        return said
    return "finished", last.size, state["log"].tolist()


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_rank_that_an_error_names_is_told_and_the_others_go_on_also_while_its_process_lives(
    zygote: Zygote, shape: str, kind: type[isthmus.Error], lives: bool
) -> None:
    with job(zygote, 4, lambda me: told(me, kind, (1,), lives), shape) as ranks:
        alone = (kind.__name__, (1,), 3)
        if lives:
            assert ranks[1].expect("told") == alone
        ends = results([ranks[0], *ranks[2:]])
        assert ends == [("finished", 3, [4] * 3 + [3] * (STEPS - 3))] * 3
        if lives:
            ranks[1].tell("end")
        assert ranks[1].result() == alone


def test_what_a_failed_step_has_held_is_free_in_the_next_one(zygote: Zygote) -> None:
    """Memory of the device, say, which the rank needs again."""

    def body(me: Me) -> Any:
        state = elastic.State({"log": np.zeros(STEPS, np.int64)})
        held: list[weakref.ref[Any]] = []
        still = []

        def step(comm: isthmus.Comm, number: int) -> None:
            still.append([one() is not None for one in held])
            large = np.ones(1000)
            comm.all_reduce(large)
            if number == 3 and comm.size == 4:
                held.append(weakref.ref(large))
                fail(me, comm, isthmus.DeviceError, (1,))

        try:
            elastic.run(step, me.init(), state, steps=6)
        except isthmus.DeviceError:
            return None
        return still

    with job(zygote, 4, body) as ranks:
        for still in (ends := results(ranks)):
            assert still is None or still == [[]] * 4 + [[False]] * 3, ends
        assert ends.count(None) == 1


def test_several_ranks_that_an_error_names_are_all_left_out(zygote: Zygote) -> None:
    """The two are as many as the others, who go on when their processes have ended."""
    with job(zygote, 4, lambda me: told(me, isthmus.DeviceError, (1, 3))) as ranks:
        first, second, third, last = results(ranks)
    assert second == last == ("DeviceError", (1, 3), 3)
    assert first == third == ("finished", 2, [4] * 3 + [2] * (STEPS - 3))


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_an_error_that_names_nobody_ends_the_job_on_all_ranks(zygote: Zygote, kind: type[isthmus.Error]) -> None:
    with job(zygote, 4, lambda me: told(me, kind, ())) as ranks:
        assert results(ranks) == [(kind.__name__, (), 3)] * 4


def test_all_ranks_raise_where_one_knows_of_an_error_that_names_nobody_and_the_others_of_an_abort(zygote: Zygote) -> None:
    with job(zygote, 4, lambda me: told(me, isthmus.SystemError, (), holds=(2,))) as ranks:
        ends = results(ranks)
    assert ends.pop(2) == ("SystemError", (), 3)
    assert [(said, step) for said, _, step in ends] == [("AbortedError", 3)] * 3


def test_a_job_that_has_lost_nobody_by_such_an_error_ends(zygote: Zygote) -> None:
    """It would come to the same error again and again."""

    def body(me: Me) -> Any:
        isthmus.Comm.agree = lambda *_, **__: (0, [])  # type: ignore[method-assign, assignment]
        return told(me, isthmus.DeviceError, (9,))

    with job(zygote, 4, body) as ranks:
        assert results(ranks) == [("DeviceError", (9,), 3)] * 4
