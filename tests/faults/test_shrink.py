"""What is left of a communicator goes on without the ranks that were lost."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest

from jobs import DEADLINE, Me, Zygote, all_say, forever, job, results, total
from patience import SOON, patient


@pytest.mark.parametrize("victims", [[0], [2], [1, 3]], ids=str)
def test_the_survivors_make_a_new_one(zygote: Zygote, shape: str, victims: list[int]) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        me.send("ready")
        lost = me.caught(lambda: forever(comm))
        gone = me.hear()
        rest = comm.shrink(gone, abort=True)
        found = (rest.rank, rest.size, rest.name, total(rest, me))
        comm.destroy()
        again = rest.split(0, -rest.rank)  # it is one like any other
        assert again is not None
        return lost["kind"], found, (again.rank, total(again, me)), total(rest, me)

    with job(zygote, 5, body, shape) as ranks:
        all_say(ranks, "ready")
        for victim in victims:
            ranks[victim].signal(signal.SIGKILL)
        left = [rank for rank in ranks if rank.rank not in victims]
        for rank in left:
            rank.tell(victims)
        total_left = float(sum(rank.rank for rank in left))
        for place, (kind, found, again, last) in enumerate(results(left)):
            assert kind == "PeerLostError"
            assert found == (place, len(left), "job/shrink", total_left)
            assert again == (len(left) - 1 - place, total_left) and last == total_left


def test_half_of_the_ranks_go_on_where_one_hears_of_the_end_of_the_others_later(zygote: Zygote, shape: str) -> None:
    """Rank 2 suspects both that are to end; rank 3 hears that before it hears that they have ended."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.hear()
        if me.rank < 2:
            me.send("waits")
            me.hear()  # until it is killed
        rest = comm.shrink(failed=[0, 1] if me.rank == 2 else [])
        return rest.size, total(rest, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go on")
        all_say(ranks[:2], "waits")
        time.sleep(0.3)  # the others are in it by then; where they are not, nothing is to be heard later
        for rank in ranks[:2]:
            rank.signal(signal.SIGKILL)
        assert results(ranks[2:]) == [(2, 5.0)] * 2


def test_a_rank_that_is_lost_meanwhile_is_named_and_they_call_again(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.caught(lambda: forever(comm))
        me.hear()
        if me.rank == 1:
            me.send("waits")
            me.hear()  # until it is killed
        first = me.caught(lambda: comm.shrink([3], abort=True))
        return first["kind"], first["text"], total(comm.shrink([1, 3], abort=True, name="rest"), me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[3].signal(signal.SIGKILL)
        for rank in ranks[:3]:
            rank.tell("go on")
        ranks[1].expect("waits")
        ranks[1].signal(signal.SIGKILL)
        for kind, text, found in results([ranks[0], ranks[2]]):
            assert kind == "PeerLostError" and "rank 1" in text and "is gone" in text, text
            assert found == 2.0


def test_it_has_the_deadline_of_the_communicator_and_names_who_is_missing(zygote: Zygote, shape: str) -> None:
    """Rank 1 has another list, rank 2 does not call; nobody takes one's word for another's."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")  # who has left a barrier may abort before the others have
        me.hear()
        comm.set_timeout(patient(6))
        said = me.caught(lambda: comm.shrink([2] if me.rank == 0 else [], abort=True)) if me.rank < 2 else None
        me.send("tried")
        me.hear()
        comm.set_timeout(DEADLINE)
        return said, total(comm.shrink([], abort=True), me)

    with job(zygote, 3, body, shape) as ranks:
        for said in ("ready", "tried"):
            all_say(ranks, said)
            for rank in ranks:
                rank.tell("all together")
        said = results(ranks)
        assert [found for _, found in said] == [3.0] * 3
        first, second = said[0][0], said[1][0]
        assert first["kind"] == second["kind"] == "TimeoutError" and first["took"] < SOON > second["took"]
        assert "rank 1" in first["text"] and "names other ranks" in first["text"], first
        assert "rank 0" in second["text"] and "names other ranks" in second["text"], second


def test_what_comes_of_a_communicator_has_the_timeout_that_it_was_given_last(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.set_timeout(DEADLINE + 1 + me.rank)
        made = [comm.split(0), comm.shrink([]), comm.shrink()]
        return comm.timeout, [one.timeout for one in made]

    with job(zygote, 2, body) as ranks:
        assert results(ranks) == [(DEADLINE + 1 + rank, [DEADLINE + 1 + rank] * 3) for rank in range(2)]


def test_without_abort_operations_go_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        work = comm.all_reduce(x := np.full(100_000, me.rank, np.float64), async_op=True)
        found = total(comm.shrink([1]), me) if me.rank != 1 else None
        work.wait()
        return found, float(x[0]), total(comm, me)

    with job(zygote, 3, body, shape) as ranks:
        assert results(ranks) == [(2.0, 3.0, 3.0), (None, 3.0, 3.0), (2.0, 3.0, 3.0)]


def test_what_cannot_be_is_refused_at_once(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        wrong = [me.caught(lambda list=list: comm.shrink(list)) for list in ([2], [-1], [me.rank])]
        ok = total(comm, me)
        me.send("summed")  # who has its sum may abort before the other has
        me.hear()
        comm.abort("enough")
        wrong.append(me.caught(lambda: comm.shrink([1 - me.rank])))
        comm.destroy()
        wrong.append(me.caught(lambda: comm.shrink([1 - me.rank], abort=True)))
        return [one["text"] for one in wrong], max(one["took"] for one in wrong), ok

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "summed")
        for rank in ranks:
            rank.tell("go")
        for number, (texts, took, ok) in enumerate(results(ranks)):
            assert took < SOON and ok == 1.0
            assert "no rank 2 among 2" in texts[0] and "no rank -1 among 2" in texts[1]
            assert f"rank {number} is among those that are excluded" in texts[2]
            assert "enough" in texts[3] and "is shrunk with abort" in texts[3], texts[3]
            assert "destroyed" in texts[4]
