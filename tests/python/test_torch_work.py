"""Work: what an asynchronous operation tells, its futures, its timeouts, and how it fails."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import isthmus.torch
import torch_ranks
from patience import SOON, patient
from torch_ranks import hear, heard, raises, tell

TOGETHER = "torch"  # whose ranks are forked by one server

SHORT = 0.3  # seconds of a deadline that passes. Inside it is one call of one rank.
PAUSE = 0.05  # seconds in which what must not happen could


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_a_work_is_not_completed_before_the_last_rank_has_called() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x = torch.ones(1000)
        if rank == 1:
            hear("looked")
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            time.sleep(PAUSE)
            assert not work.is_completed() and not work.is_success() and work.exception() is None
            raises("before its end", work.result)
            tell("looked")
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert x.eq(2).all() and work.result()[0].data_ptr() == x.data_ptr()
        assert work._get_duration() >= (PAUSE * 1e3 if rank == 0 else 0)

    torch_ranks.run(2, body)


def test_is_completed_becomes_true_without_wait() -> None:
    def body() -> None:
        x = torch.ones(4, 4)
        work = dist.all_reduce(x[:, 1], async_op=True)  # a copy is written back when it is done
        end = time.monotonic() + SOON
        while not work.is_completed():
            assert time.monotonic() < end
            time.sleep(0.001)
        assert work.is_success() and x[:, 1].eq(2).all() and x[:, 0].eq(1).all()

    torch_ranks.run(2, body)


def test_a_blocking_call_returns_when_its_result_is_there() -> None:
    def body() -> None:
        opts = dist.AllreduceOptions()
        opts.asyncOp = False
        x = torch.ones(3)
        work = dist.group.WORLD.allreduce([x], opts)
        assert work.is_completed() and work.is_success() and x.tolist() == [2, 2, 2]
        assert work.get_future().wait()[0].data_ptr() == x.data_ptr()
        assert work._get_duration() > 0

    torch_ranks.run(2, body)


def test_a_future_completes_when_the_operation_is_done_and_not_before() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x = torch.ones(5)
        if rank == 1:
            hear("looked")
        future = dist.all_reduce(x, async_op=True).get_future()
        if rank == 0:
            time.sleep(PAUSE)
            assert not future.done()
            tell("looked")
        halved = future.then(lambda f: f.value()[0] / 2)
        assert halved.wait().tolist() == [1.0] * 5 and future.done()

    torch_ranks.run(2, body)


def test_a_callback_of_a_future_may_wait_for_another_collective() -> None:
    def body() -> None:
        def again(future: torch.futures.Future) -> torch.Tensor:
            x = future.value()[0]
            dist.all_reduce(x)
            return x

        x = torch.ones(3)
        assert dist.all_reduce(x, async_op=True).get_future().then(again).wait().tolist() == [4.0] * 3

    torch_ranks.run(2, body)


def test_callbacks_that_wait_for_each_others_operations_end_at_any_depth() -> None:
    """Each starts an operation that its peer joins once the callback is waiting for it, and so on inwards."""
    depth = 12

    def body() -> None:
        x = torch.ones(3)
        if dist.get_rank() == 1:
            for level in range(depth):
                hear(f"pending {level}")
                dist.all_reduce(x)
            return

        def start(level: int) -> torch.futures.Future[int]:
            future = dist.all_reduce(x, async_op=True).get_future()

            def inwards(_: object) -> int:
                return level if level + 1 == depth else start(level + 1).wait()

            following = future.then(inwards)
            tell(f"pending {level}")
            return following

        assert start(0).wait() == depth - 1

    torch_ranks.run(2, body)


def test_a_callback_that_does_not_come_back_holds_up_no_other_operation_or_group() -> None:
    def body() -> None:
        other = dist.new_group([0, 1])
        x, y = torch.ones(3), torch.ones(3)
        inside, go_on = threading.Event(), threading.Event()

        def stay(_: object) -> bool:
            inside.set()
            return go_on.wait(SOON)

        if dist.get_rank() == 0:
            stays = dist.all_reduce(x, async_op=True).get_future().then(stay)
            tell("attached")
            assert inside.wait(SOON)
            tell("inside")
        else:
            hear("attached")
            dist.all_reduce(x)
            hear("inside")
        for group in (dist.group.WORLD, other):
            work = dist.all_reduce(y, group=group, async_op=True)
            assert work.get_future().then(lambda f: f.value()[0][0].item()).wait() in (2.0, 4.0)
            work.wait()
        if dist.get_rank() == 0:
            assert not stays.done()
            go_on.set()
            assert stays.wait()

    torch_ranks.run(2, body)


def test_the_callbacks_of_a_future_run_in_their_order_and_one_that_raises_fails_its_own_alone() -> None:
    def body() -> None:
        x = torch.ones(3)
        if dist.get_rank() == 1:
            hear("attached")
        future = dist.all_reduce(x, async_op=True).get_future()
        order = []

        def note(number: int) -> int:
            order.append(number)
            if number == 3:
                raise ValueError("the third")
            return number

        following = [future.then(lambda _, number=number: note(number)) for number in range(6)]
        if dist.get_rank() == 0:
            tell("attached")
        for number, each in enumerate(following):
            if number == 3:
                raises("the third", each.wait)
            else:
                assert each.wait() == number
        assert order == list(range(6))
        assert dist.all_reduce(x, async_op=True).get_future().wait()[0].tolist() == [4.0] * 3

    torch_ranks.run(2, body)


def test_a_callback_that_never_comes_back_does_not_keep_the_process() -> None:
    def body() -> None:
        inside = threading.Event()

        def stay(_: object) -> None:
            inside.set()
            threading.Event().wait()

        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3), async_op=True).get_future().then(stay)
            tell("attached")
            assert inside.wait(SOON)
        else:
            hear("attached")
            dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        isthmus.torch._torch.shutdown_all()  # what runs at the interpreter's exit

    torch_ranks.run(2, body)


def test_get_future_result_says_how_it_ended() -> None:
    def body() -> None:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work.get_future_result().wait() == dist._WorkResult.SUCCESS.value if hasattr(dist, "_WorkResult") else True
        assert int(work.get_future_result().wait()) == 0

    torch_ranks.run(2, body)


def test_tensors_live_until_the_operation_is_done_though_nobody_holds_them() -> None:
    def body() -> float:
        rank = dist.get_rank()
        if rank == 0:
            for i in range(50):
                dist.isend(torch.full((20_000,), float(i)), 1)  # Work and tensor are dropped at once
                gc.collect()
                torch.full((20_000,), -1.0)
            tell("all sent")
            dist.barrier()
            return 0.0
        hear("all sent")
        for i in range(50):
            x = torch.empty(20_000)
            dist.recv(x, 0)
            assert x.eq(i).all()
        dist.barrier()
        return 1.0

    assert torch_ranks.run(2, body) == [0.0, 1.0]


def test_many_operations_in_flight_end_in_any_order_of_waiting() -> None:
    def body() -> None:
        tensors = [torch.full((64,), float(i)) for i in range(100)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        for work in reversed(works):
            work.wait()
        assert all(t.eq(2 * i).all() for i, t in enumerate(tensors))

    torch_ranks.run(2, body)


def test_sequence_numbers_agree_on_all_ranks_and_grow() -> None:
    def body() -> list[int]:
        backend = torch_ranks.backend()
        backend._set_sequence_number_for_group()
        seen = [backend._get_sequence_number_for_group()]
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            seen.append(backend._get_sequence_number_for_group())
        return seen

    first, second = torch_ranks.run(2, body)
    assert first == second and all(a < b for a, b in zip(first, first[1:], strict=False))


def test_wait_with_a_timeout_gives_up_while_the_operation_goes_on() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x = torch.ones(3)
        if rank == 1:
            hear("gave up")
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            raises("still runs", lambda: work.wait(seconds(PAUSE)))
            assert not work.is_completed()
            tell("gave up")
        assert work.wait(seconds(SOON)) and x.tolist() == [2, 2, 2]

    torch_ranks.run(2, body)


def test_an_operation_past_its_own_timeout_fails_and_names_the_missing_rank() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("failed")
            return
        opts = dist.AllreduceOptions()
        opts.timeout = seconds(SHORT)
        work = dist.group.WORLD.allreduce([torch.ones(3)], opts)
        begin = time.monotonic()
        text = raises("timeout", work.wait, dist.DistBackendError)
        assert "rank 1" in text and "0.3 s" in text and time.monotonic() - begin > SHORT / 2
        assert work.is_completed() and not work.is_success()
        raises("timeout", lambda: work.wait())  # again, as often as it is asked
        assert "timeout" in str(work.exception())
        tell("failed")

    torch_ranks.run(2, body)


def test_the_groups_timeout_holds_where_a_call_gives_none() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("failed")
            return
        dist.group.WORLD.set_timeout(seconds(SHORT))
        text = raises("rank 1", lambda: dist.all_reduce(torch.ones(3)))
        tell("failed")
        assert "timeout" in text and "0.3 s" in text

    torch_ranks.run(2, body)


def test_a_barriers_timeout_is_honoured() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("failed")
            return
        text = raises("rank 1", lambda: dist.barrier(timeout=seconds(SHORT)))
        tell("failed")
        assert "timeout" in text and "0.3 s" in text

    torch_ranks.run(2, body)


def test_monitored_barrier_of_the_backend_passes_and_names_who_is_missing() -> None:
    def body() -> None:
        backend, rank = torch_ranks.backend(), dist.get_rank()
        backend.monitored_barrier(seconds(SOON))
        if rank == 2:
            hear("failed 0", "failed 1")
            return
        if rank == 0:
            hear("1 is inside")  # else it is missing, too, and named first
        else:
            threading.Thread(target=torch_ranks.once_inside, args=(lambda: tell("1 is inside"),)).start()
        wait = seconds(SHORT if rank == 0 else SOON)
        raises("rank 2", lambda: backend.monitored_barrier(wait, wait_all_ranks=True))
        tell(f"failed {rank}")

    torch_ranks.run(3, body)


def test_a_failed_operation_fails_its_future_too() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("failed")
            return
        opts = dist.AllreduceOptions()
        opts.timeout = seconds(SHORT)
        future = dist.group.WORLD.allreduce([torch.ones(3)], opts).get_future()
        raises("rank 1", future.wait)
        tell("failed")

    torch_ranks.run(2, body)


def test_the_death_of_a_rank_ends_the_others_operations() -> None:
    def body() -> str:
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return raises("rank 1", lambda: [dist.all_reduce(torch.ones(3)) for _ in range(2)], dist.DistBackendError)

    said = torch_ranks.run(3, body, expect={1: -9})
    assert said[1] is None and "peer lost" in said[0] and "peer lost" in said[2], said


def test_abort_ends_a_wait_in_another_thread_and_on_other_ranks() -> None:
    def body() -> None:
        dist.barrier()
        backend = torch_ranks.backend()
        if dist.get_rank() == 0:
            caught: list[str] = []
            thread = threading.Thread(target=lambda: caught.append(raises("aborted", lambda: dist.recv(torch.ones(3), 1))))
            thread.start()
            hear("behind the barrier")  # an abort also ends what is about to succeed
            torch_ranks.once_inside(backend.abort)
            thread.join(SOON)
            assert caught and not thread.is_alive()
        else:
            tell("behind the barrier")
            raises("aborted", lambda: dist.recv(torch.ones(3), 0))
        raises("aborted", lambda: dist.barrier())

    torch_ranks.run(2, body)


def test_other_python_threads_run_while_a_call_blocks() -> None:
    def body() -> None:
        dist.barrier()
        if dist.get_rank() == 1:  # comes when the other rank's thread has got its word through; else there is the deadline
            hear("ticked")
            dist.all_reduce(torch.ones(1))
            dist.barrier()
            torch_ranks.backend().barrier().wait()
            return

        def tick() -> None:
            for _ in range(50):
                time.sleep(0.001)
            tell("ticked")

        thread = threading.Thread(target=tick)
        thread.start()
        dist.all_reduce(torch.ones(1))
        thread.join()
        dist.barrier()
        torch_ranks.backend().barrier().wait()

    torch_ranks.run(2, body)


def test_ctrl_c_ends_a_blocking_call() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("interrupted")
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = threading.Thread(target=lambda: torch_ranks.once_inside(lambda: os.kill(os.getpid(), signal.SIGINT)))
        thread.start()
        try:
            dist.all_reduce(torch.ones(3))
        except KeyboardInterrupt:
            tell("interrupted")
        else:
            raise AssertionError("Ctrl-C was ignored")

    torch_ranks.run(2, body)


def test_ctrl_c_ends_wait() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("interrupted")
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work = dist.all_reduce(torch.ones(3), async_op=True)
        try:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            work.wait()
        except KeyboardInterrupt:
            tell("interrupted")
        else:
            raise AssertionError("Ctrl-C was ignored")

    torch_ranks.run(2, body)


def test_an_operation_that_ends_well_as_a_wait_for_it_is_over_has_succeeded() -> None:
    """Many operations whose ends come about when the time of a wait is over."""

    def body() -> None:
        x, rank = torch.ones(1), dist.get_rank()
        for round in range(300):
            if rank == 1:
                time.sleep(0.0009 + 0.00001 * (round % 20))
                dist.all_reduce(x)
                continue
            work = dist.all_reduce(x, async_op=True)
            try:
                work.wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                assert "still runs" in str(error)
                work.wait()
            assert work.exception() is None

    torch_ranks.run(2, body)


def test_ctrl_c_that_comes_with_the_end_of_an_operation_is_raised_and_the_operation_has_its_own_outcome() -> None:
    """The signal's handler comes back only when the operation's deadline has ended it, and raises then."""

    def body() -> None:
        if dist.get_rank() == 1:
            hear("looked")
            return
        waits, handled = threading.Event(), threading.Event()

        def handler(*_: object) -> None:
            if not waits.is_set() or handled.is_set():
                return
            handled.set()
            until(lambda: all(entry["state"] != "running" for entry in isthmus.torch.dump()["entries"]))
            raise KeyboardInterrupt

        def send() -> None:
            while not handled.wait(0.01):
                os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, handler)
        opts = dist.AllreduceOptions()
        opts.timeout = seconds(patient(3 * SHORT))  # in which it comes to its wait
        work = dist.group.WORLD.allreduce([torch.ones(3)], opts)
        threading.Thread(target=send, daemon=True).start()
        try:
            waits.set()
            work.wait()
        except KeyboardInterrupt:
            raises("timeout", work.wait)
            tell("looked")
        else:
            raise AssertionError("Ctrl-C was ignored")

    torch_ranks.run(2, body)


def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold within {SOON} s"
        time.sleep(0.001)


def test_an_async_barrier_does_not_block_and_a_barrier_does() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank == 1:
            hear("went on")
            time.sleep(PAUSE)
            tell("came")
        work = dist.barrier(async_op=True)
        if rank == 0:
            assert not work.is_completed()
            tell("went on")
        work.wait()
        assert heard("came")

    torch_ranks.run(2, body)


def test_a_future_that_was_taken_before_is_complete_after_wait_and_after_completion() -> None:
    """Whoever has completed the operation: the thread that waits, or one of Isthmus' own."""

    def body() -> None:
        x = torch.ones(4, 4)
        for turn in range(300):
            if dist.get_rank() == 1 and turn % 3 == 0:
                time.sleep(0.001)
            work = dist.all_reduce(x[:, 1], async_op=True)
            future = work.get_future()
            if turn % 2 == 0:
                end = time.monotonic() + SOON
                while not work.is_completed():
                    assert time.monotonic() < end
            work.wait()
            assert future.done() and len(future.value()) == 1, turn

    torch_ranks.run(2, body)


def test_a_completion_hook_runs_on_another_thread_than_the_call() -> None:
    """The caller may hold a lock that the hook takes."""

    def body() -> None:
        lock = threading.Lock()
        seen: list[int] = []

        def hook(_info: object) -> None:
            assert lock.acquire(timeout=SOON)
            seen.append(threading.get_ident())
            lock.release()

        dist.group.WORLD._register_on_completion_hook(hook)
        with lock:
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(2), async_op=True).wait()
        dist.group.WORLD._wait_for_pending_works()
        assert len(seen) == 2 and threading.get_ident() not in seen

    torch_ranks.run(2, body)


def test_completion_hooks_see_every_operation() -> None:
    def body() -> None:
        seen: list[str] = []
        group = dist.group.WORLD
        group._register_on_completion_hook(lambda info: seen.append(info.op_type.name))
        assert group._has_hooks()
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True).wait()
        dist.all_reduce(torch.ones(2), async_op=True)
        group._wait_for_pending_works()
        assert sorted(seen) == ["ALLREDUCE", "ALLREDUCE", "BROADCAST"]

    torch_ranks.run(2, body)


def test_a_completion_hook_that_raises_fails_no_operation_and_holds_up_no_end_of_the_group() -> None:
    def body() -> None:
        def hook(info: object) -> None:
            raise ValueError("the hook's own")

        dist.group.WORLD._register_on_completion_hook(hook)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        assert x.tolist() == [4.0, 4.0]
        begin = time.monotonic()
        dist.destroy_process_group()  # the group's timeout is SOON
        assert time.monotonic() - begin < SOON / 2

    torch_ranks.run(2, body)


def test_a_completion_hook_hears_of_a_blocking_call_that_fails_and_of_none_that_is_refused() -> None:
    def body() -> None:
        if dist.get_rank() == 1:
            hear("failed")
            return
        seen: list[str] = []
        dist.group.WORLD._register_on_completion_hook(lambda info: seen.append(info.op_type.name))
        opts = dist.AllreduceOptions()
        opts.asyncOp, opts.reduceOp = False, dist.ReduceOp.BAND
        raises("no meaning", lambda: dist.group.WORLD.allreduce([torch.ones(2)], opts), NotImplementedError)
        raises("rank 1", lambda: dist.barrier(timeout=seconds(SHORT)))
        tell("failed")
        dist.group.WORLD._wait_for_pending_works()
        assert seen == ["BARRIER"], seen

    torch_ranks.run(2, body)


def test_a_completion_hook_hears_of_a_coalescing_block_once() -> None:
    def body() -> None:
        seen: list[str] = []
        dist.group.WORLD._register_on_completion_hook(lambda info: seen.append(info.op_type.name))
        x, y = torch.ones(2), torch.ones(2)
        with _coalescing_manager(device=torch.device("cpu")):
            dist.broadcast(x, 0, async_op=True)
            dist.reduce(y, 0, async_op=True)
        dist.group.WORLD._wait_for_pending_works()
        assert seen == ["COALESCED"], seen

    torch_ranks.run(2, body)


def test_the_profiler_shows_a_coalescing_block() -> None:
    def body() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(100):
                with _coalescing_manager(device=torch.device("cpu")):
                    dist.broadcast(torch.ones(4), 0, async_op=True)
        names = [event.name for event in profile.events() if event.name.startswith("isthmus:")]
        assert names.count("isthmus:coalesced") == names.count("isthmus:broadcast") == 100, names

    torch_ranks.run(2, body)


def test_the_profiler_shows_the_operations() -> None:
    def body() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(4), 0, async_op=True).wait()
            torch_ranks.backend().barrier().wait()
        names = {event.name for event in profile.events()}
        assert {"isthmus:all_reduce", "isthmus:broadcast"} <= names, names

    torch_ranks.run(2, body)
