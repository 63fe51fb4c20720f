"""isthmus.elastic: a job goes on without the ranks that it loses, from the last finished step, with one state on all."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import elastic
from jobs import Me, Zygote, all_say, job, results
from patience import patient

STEPS = 8


def weights(number: int = 0) -> dict[str, np.ndarray]:
    return {"w": np.full(100_000, float(number)), "log": np.zeros(2 * STEPS, np.int64)}


def add_up(comm: isthmus.Comm, state: elastic.State, number: int) -> None:
    """w becomes 2 w + the number of ranks, and log[number] that number. A step that comes to no end leaves ruins."""
    state["w"] *= 2
    state["log"][number] = -1
    ones = comm.all_reduce(np.ones(50_000))
    state["w"] += ones[0]
    state["log"][number] = int(ones[0])


def expected(log: np.ndarray, begin: float = 0.0) -> float:
    w = begin
    for ranks in log[log != 0]:
        w = 2 * w + ranks
    return w


def test_steps_run_in_their_order_with_the_state_of_rank_0_and_hooks_see_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        told: list[Any] = []
        state = elastic.State(weights(me.rank))
        comm = elastic.run(
            lambda comm, number: add_up(comm, state, number),
            me.init(),
            state,
            steps=STEPS,
            on_change=lambda old, new: told.append((old, new.size, new.numbers, new.number, new.received)),
            on_step=lambda members: told.append(members.step),
        )
        comm.destroy()
        return told, state.step, state["log"][:STEPS].tolist(), float(state["w"][0])

    with job(zygote, 3, body, shape) as ranks:
        for rank, (told, step, log, w) in enumerate(results(ranks)):
            first, *steps = told
            assert first == (None, 3, (0, 1, 2), rank, ("w",) if rank else ())
            assert steps == list(range(1, STEPS + 1)) and step == STEPS
            assert log == [3] * STEPS and w == expected(np.array(log))


@pytest.mark.parametrize("victims", [[0], [2], [1, 3]], ids=str)
def test_ranks_that_are_killed_in_a_step_are_left_out_and_the_step_runs_again(
    zygote: Zygote, shape: str, victims: list[int]
) -> None:
    def body(me: Me) -> Any:
        changes: list[Any] = []
        state = elastic.State(weights())

        def changed(old: Any, new: elastic.Members) -> None:
            changes.append((old and old.numbers, new.numbers))

        def step(comm: isthmus.Comm, number: int) -> None:
            if number == 3 and comm.size == 5 and me.rank in victims:
                comm.all_reduce(np.ones(1))  # all have come to this step
                me.send("in the step")
                me.hear()  # until it is killed
            elif number == 3 and comm.size == 5:
                comm.all_reduce(np.ones(1))
            add_up(comm, state, number)

        comm = elastic.run(step, me.init(), state, steps=STEPS, on_change=changed)
        return changes, comm.size, comm.name, state["log"].tolist(), state["w"]

    with job(zygote, 5, body, shape) as ranks:
        for victim in victims:
            ranks[victim].expect("in the step")
        for victim in victims:
            ranks[victim].signal(signal.SIGKILL)
        left = [rank for rank in ranks if rank.rank not in victims]
        ends = results(left)
        numbers = tuple(rank.rank for rank in left)
        for changes, size, name, log, w in ends:
            assert changes[0] == (None, (0, 1, 2, 3, 4)) and changes[-1][1] == numbers
            assert size == len(left) and name.startswith("world~")
            assert log == [5] * 3 + [len(left)] * (STEPS - 3) + [0] * STEPS
            assert w.tobytes() == ends[0][4].tobytes() and w[0] == expected(np.array(log))


def test_a_rank_that_is_stopped_is_left_out_and_hears_it_when_it_goes_on(zygote: Zygote, shape: str) -> None:
    """Rank 0, which would lead the agreement."""

    def body(me: Me) -> Any:
        state = elastic.State(weights())

        def step(comm: isthmus.Comm, number: int) -> None:
            if number == 2 and comm.size == 4 and me.rank == 0:
                me.send("in the step")
                me.hear()
            add_up(comm, state, number)

        whole = me.init()
        whole.barrier()
        whole.set_timeout(patient(8))
        try:
            quorum = elastic.Quorum(least=2, answer=patient(6))
            comm = elastic.run(step, whole, state, steps=STEPS, quorum=quorum)
        except isthmus.AbortedError as error:
            return str(error), state.step
        return comm.size, state["log"].tolist(), float(state["w"][0])

    with job(zygote, 4, body, shape) as ranks:
        ranks[0].expect("in the step")
        ranks[0].signal(signal.SIGSTOP)
        log = [4] * 2 + [3] * (STEPS - 2) + [0] * STEPS
        assert results(ranks[1:]) == [(3, log, expected(np.array(log)))] * 3
        ranks[0].tell("go on")
        ranks[0].signal(signal.SIGCONT)
        text, step = ranks[0].result()
        assert "go on without this one" in text and step == 2, text


def test_a_rank_that_is_lost_in_the_last_step_takes_no_finished_state_with_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        state = elastic.State(weights())

        def finished(members: elastic.Members) -> None:
            if members.step == STEPS and me.rank == 1 and members.size == 3:
                me.send("finished")
                me.hear()  # until it is killed

        comm = elastic.run(lambda comm, number: add_up(comm, state, number), me.init(), state, steps=STEPS, on_step=finished)
        return comm.size, state["log"].tolist(), float(comm.all_reduce(np.ones(1))[0])

    with job(zygote, 3, body, shape) as ranks:
        ranks[1].expect("finished")
        ranks[1].signal(signal.SIGKILL)
        assert results([ranks[0], ranks[2]]) == [(2, [3] * STEPS + [0] * STEPS, 2.0)] * 2


def test_fewer_ranks_than_the_quorum_do_not_go_on(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        state = elastic.State(weights())

        def step(comm: isthmus.Comm, number: int) -> None:
            if number == 2:
                me.send("in the step")
                if me.rank == 1:
                    me.hear()  # until it is killed
            add_up(comm, state, number)

        end = me.caught(lambda: elastic.run(step, me.init(), state, steps=STEPS, quorum=elastic.Quorum(least=2)))
        return end["kind"], end["text"], state.step

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "in the step")
        ranks[1].signal(signal.SIGKILL)
        kind, text, step = ranks[0].result()
        assert kind == "PeerLostError" and "1 rank is left of 'world', and quorum.least is 2" in text and step == 2, text


def test_what_a_step_raises_of_its_own_ends_the_job(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()

        def step(comm: isthmus.Comm, number: int) -> None:
            if number == 1:
                raise isthmus.TimeoutError("of something else")

        return me.caught(lambda: elastic.run(step, comm, elastic.State(weights()), steps=STEPS))["text"], comm.error

    with job(zygote, 2, body) as ranks:
        assert results(ranks) == [("of something else", None)] * 2


@pytest.mark.product(3)
@pytest.mark.parametrize("seed", range(9))
def test_ranks_that_are_killed_at_any_time_leave_one_state_on_the_others(zygote: Zygote, shape: str, seed: int) -> None:
    def body(me: Me) -> Any:
        state = elastic.State({"w": np.zeros(100_000), "log": np.zeros(300, np.int64)})
        whole = me.init()
        me.send("ready")

        def step(comm: isthmus.Comm, number: int) -> None:
            add_up(comm, state, number)
            while number == 250 and comm.size > 3:  # it does not end before all three are killed
                comm.barrier()

        comm = elastic.run(step, whole, state, steps=300)
        return comm.size, state["log"].tolist(), state["w"].tobytes()

    chance = random.Random(seed)
    with job(zygote, 6, body, shape) as ranks:
        all_say(ranks, "ready")
        left = list(ranks)
        for _ in range(3):
            time.sleep(chance.uniform(0.05, 0.3))  # no order depends on it
            victim = left.pop(chance.randrange(len(left)))
            victim.signal(signal.SIGKILL)
        ends = results(left)
        assert len(set(map(str, ends))) == 1
        size, log, _ = ends[0]
        assert size == 3 and log == sorted(log, reverse=True) and set(log) <= {3, 4, 5, 6}


# ---- the state -------------------------------------------------------------------------------------------------------


def meeting(me: Me, tensors: dict[str, Any], steps: int, number: int | None = None, unused: int = 9) -> Any:
    """Rank me.rank has finished `steps` steps and meets the others."""
    from isthmus.elastic import _sync

    comm = me.init()
    state = elastic.State(tensors)
    for _ in range(steps):
        state.finish()
    members, _ = _sync.Sync(comm, state, comm.rank if number is None else number, unused).run()
    return state, members


def test_who_has_finished_most_steps_gives_what_the_others_hold_unlike_and_nothing_else(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        tensors = {"a": np.full(1000, float(me.rank)), "b": np.arange(7), "c": np.full((2, 3), me.rank == 1, bool)}
        state, members = meeting(me, tensors, 5 if me.rank in (1, 2) else 4)
        return members.received, members.step, state.step, [tensors[name].sum() for name in "abc"]

    with job(zygote, 3, body, shape) as ranks:
        same = (5, 5, [1000, 21, 6])
        assert results(ranks) == [(("a", "c"), *same), ((), *same), (("a", "c"), *same)]


@pytest.mark.parametrize("busy", [True, False])
def test_a_state_leaves_the_links_to_operations_of_other_communicators(zygote: Zygote, shape: str, busy: bool) -> None:
    """4 MiB: sixteen short pieces with a pause behind each but the last, or five that become longer."""

    def body(me: Me) -> Any:
        from isthmus.elastic import _sync

        pauses, give_way = [], _sync._give_way
        _sync._give_way = lambda *args: pauses.append(give_way(*args)) or pauses[-1]
        comm = me.init()
        other = comm.split(0)
        x = np.full(1000, float(me.rank))
        first = other.all_reduce(x, async_op=True) if busy and me.rank == 0 else None  # rank 1 comes when the state has come
        state = elastic.State({"w": np.full(1 << 19, float(me.rank))})
        if me.rank == 0:
            state.finish()
        _sync.Sync(comm, state, me.rank, 2).run()
        if busy:
            other.all_reduce(x) if first is None else first.wait()
        return pauses, float(state["w"].max()), x[0]

    with job(zygote, 2, body, shape) as ranks:
        pauses = [True] * 15 if busy else [False] * 4
        assert results(ranks) == [(pauses, 0.0, 1.0 if busy else float(rank)) for rank in range(2)]


def test_a_revision_is_the_step_that_last_changed_a_tensor_and_travels_with_it(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        from isthmus.elastic import _sync

        state = elastic.State({"moves": np.zeros(3), "stays": np.ones(3), "long": np.zeros(400_000)})
        if me.rank == 0:
            for step in range(4):
                state["moves"][0] += 1
                state["long"][-1] = step > 1  # bits change in step 3 alone
                state.finish()
        comm = me.init()
        _sync.Sync(comm, state, me.rank, 2).run()
        return [state.revision(name) for name in ("moves", "stays", "long")]

    with job(zygote, 2, body) as ranks:
        assert results(ranks) == [[4, 0, 3]] * 2


def test_a_newcomer_gets_a_number_that_nobody_has_had(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        mine, unused = {0: (4, 6), 1: (-1, 0), 2: (2, 6), 3: (-1, 0)}[me.rank]
        return meeting(me, weights(), 0, mine, unused)[1].numbers

    with job(zygote, 4, body) as ranks:
        assert results(ranks) == [(4, 6, 2, 7)] * 4


def test_what_comes_damaged_is_sent_once_more(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        from isthmus.elastic import _sync

        whole, sent = _sync.digest, []

        def damaged(data: Any) -> bytes:
            sent.append(len(data))
            return whole(data) if len(sent) > 1 else b"\0" * 16

        if me.rank == 1:
            _sync.digest = damaged
        state, members = meeting(me, {"w": np.full(1000, float(me.rank))}, 0)
        return members.received, float(state["w"].max()), sent

    with job(zygote, 3, body) as ranks:
        assert results(ranks) == [((), 0.0, []), (("w",), 0.0, [8000, 8000]), (("w",), 0.0, [])]


def test_what_comes_damaged_twice_is_refused_by_name_on_all_ranks(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        from isthmus.elastic import _sync

        if me.rank == 2:
            _sync.digest = lambda data: b"\0" * 16
        tensors = {"good": np.full(10, me.rank), "w": np.full(1000, float(me.rank))}
        error = me.caught(lambda: meeting(me, tensors, 0))
        return error["kind"], error["text"], float(tensors["w"][0])

    with job(zygote, 3, body, shape) as ranks:
        for rank, (kind, text, w) in enumerate(results(ranks)):
            assert kind == "MismatchError" and "rank 2: 'good', 'w'" in text and "rank 0 of 'world'" in text, text
            assert w == rank  # nothing is taken over half


@pytest.mark.parametrize(
    "other, says",
    [
        ({"w": np.zeros(4, np.float32)}, "'w' is float32 [4] here and float64 [4] on rank 0"),
        ({"w": np.zeros((2, 2))}, "'w' is float64 [2, 2] here and float64 [4] on rank 0"),
        ({"v": np.zeros(4)}, "'v' is float64 [4] here and not there on rank 0"),
        ({}, "'w' is not there here and float64 [4] on rank 0"),
    ],
    ids=["dtype", "shape", "name", "none"],
)
def test_ranks_with_other_tensors_are_refused_by_name_on_all_ranks(zygote: Zygote, other: Any, says: str) -> None:
    def body(me: Me) -> Any:
        error = me.caught(lambda: meeting(me, other if me.rank == 1 else {"w": np.zeros(4)}, 0))
        return error["kind"], error["text"]

    with job(zygote, 3, body) as ranks:
        for kind, text in results(ranks):
            assert kind == "MismatchError" and "tensors of rank 1 of 'world'" in text and says in text, text


def test_what_another_rank_says_of_its_tensors_is_read_with_care() -> None:
    from isthmus.elastic._frames import Frame, pack, unpack

    frames = [Frame("w", "float32", (2, 3), 7, bytes(range(16))), Frame("größe", "int8", (), 0, b"\1" * 16)]
    table = pack(frames)
    assert unpack(table) == frames
    for wrong in (b"", table[:-1], table + b"\0", b"\xff" * 4 + table[4:], table[:5] + b"\xff" * 2 + table[7:]):
        with pytest.raises(isthmus.MismatchError, match="cannot be read"):
            unpack(wrong)
    chance = random.Random(1)
    for _ in range(2000):  # whatever it is, it is read or refused
        noise = bytearray(table)
        noise[chance.randrange(len(noise))] = chance.randrange(256)
        try:
            unpack(bytes(noise))
        except isthmus.MismatchError:
            pass


@pytest.mark.parametrize(
    "tensor, says",
    [
        (np.zeros((4, 4))[:, 1], "must be a contiguous, writable array"),
        (np.array([None]), "must be a contiguous, writable array"),
        (np.zeros(3, ">f4" if np.dtype("<f4").isnative else "<f4"), "must be a contiguous, writable array"),
        (np.zeros((1,) * 9), "has 9 dimensions"),
        ([1.0], "must be a NumPy array or a torch tensor, not list"),
    ],
    ids=["strided", "objects", "byte order", "dimensions", "list"],
)
def test_a_tensor_that_cannot_be_a_state_is_refused_at_once(tensor: Any, says: str) -> None:
    with pytest.raises(isthmus.ArgumentError, match=says):
        elastic.State({"w": tensor})


def test_tensors_of_torch_of_any_dtype_and_strides_are_restored_and_given_to_others(zygote: Zygote) -> None:
    pytest.importorskip("torch")

    def body(me: Me) -> Any:
        import torch

        def made(rank: int) -> dict[str, torch.Tensor]:
            base = torch.arange(12.0) + rank
            return {
                "parameter": torch.nn.Parameter(base.clone()),
                "bfloat16": base.to(torch.bfloat16),
                "bool": base > 3,
                "complex": base.to(torch.complex64) * 1j,
                "number": torch.tensor(rank),
                "strided": base.reshape(3, 4).t(),
                "nothing": torch.empty(0),
            }

        tensors = made(me.rank)
        state, members = meeting(me, tensors, 0)
        given = all(torch.equal(tensors[name], one) for name, one in made(0).items())
        with torch.no_grad():
            tensors["parameter"] *= 3
            tensors["strided"] += 1
            tensors["bfloat16"] -= 1
        state.restore()
        back = all(torch.equal(tensors[name], one) for name, one in made(0).items())
        return given, back, len(members.received)

    with job(zygote, 2, body) as ranks:
        assert results(ranks) == [(True, True, 0), (True, True, 6)]
