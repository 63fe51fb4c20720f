"""What Python sees when something goes wrong while ranks communicate."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from events import inside_a_call, meet, once_inside, until
from patience import SOON, patient

Run = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (isthmus.ArgumentError, ValueError),
        (isthmus.ConfigError, ValueError),
        (isthmus.TimeoutError, TimeoutError),
        (isthmus.PeerLostError, ConnectionError),
        (isthmus.SystemError, OSError),
        (isthmus.InterruptedError, InterruptedError),
        (isthmus.UnsupportedError, TypeError),
        (isthmus.MismatchError, RuntimeError),
        (isthmus.ForkedError, RuntimeError),
        (isthmus.DeviceError, RuntimeError),
    ],
)
def test_every_exception_is_an_error_and_pythons_class_of_that_meaning(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(kind, isthmus.Error) and issubclass(kind, builtin)
    assert str(kind("what to do")) == "what to do"


def test_a_missing_rank_is_named_at_the_deadline(threads: Run) -> None:
    def body(comm: isthmus.Comm, gate: threading.Barrier) -> None:
        comm.barrier()
        if comm.rank == 0:
            begin = time.monotonic()
            with pytest.raises(isthmus.TimeoutError, match=r"(?s)(?=.*rank 1)(?=.*all_reduce)"):
                comm.all_reduce(np.ones(4), timeout=0.5)
            assert 0.4 < time.monotonic() - begin < 0.5 + SOON
            assert comm.error is not None
        gate.wait(2 * SOON)

    threads(2, body, threading.Barrier(2))


def test_who_is_told_of_a_deadline_reads_of_the_operation_once(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: str) -> str:
        comm.barrier()
        told = [Path(folder) / "told 0", Path(folder) / "told 2"]
        if comm.rank == 1:  # busy with something else
            until(lambda: all(path.exists() for path in told))
            return ""
        called = Path(folder) / "called"
        if comm.rank == 2:
            once_inside(comm, called.touch)
        else:  # a rank that had not called would be named, too
            until(called.exists, "the call of rank 2")
        with pytest.raises(isthmus.TimeoutError) as caught:
            comm.all_reduce(np.ones(4), timeout=patient(0.5) if comm.rank == 0 else 2 * SOON)
        told[comm.rank // 2].touch()
        return str(caught.value)

    first, _, other = processes(3, body, str(tmp_path))
    operation = "#2 all_reduce (float64, sum, 4 elements) on rank"
    assert first.startswith(f"{operation} 0 of ") and first.count("all_reduce") == 1, first
    told = f"{re.escape(operation)} 2 of '.*' over .*: on rank 0 over .*, it did not finish within .* s: rank 1 "
    assert re.match(told, other), other
    assert other.count("all_reduce") == 1, other


def test_ranks_that_call_different_things_are_both_told(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> str:
        x = np.ones(4)
        with pytest.raises(isthmus.MismatchError) as caught:
            if comm.rank == 0:
                comm.all_reduce(x)
            else:
                comm.broadcast(x)
            comm.barrier()  # at the latest here
        return str(caught.value)

    for text in ranks(2, body):
        assert "all_reduce" in text and "broadcast" in text


def test_a_message_of_another_size_is_a_mismatch(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> str:
        if comm.rank == 0:
            with pytest.raises(isthmus.Error):
                comm.send(np.ones(3), 1)
                comm.barrier()  # at the latest here
            return ""
        with pytest.raises(isthmus.MismatchError) as caught:
            comm.recv(np.ones(4), 0)
        return str(caught.value)

    text = ranks(2, body)[1]
    assert "3 x float64" in text and "4 x float64" in text, text  # what was sent, and what was asked for


def test_abort_ends_a_call_on_every_rank_with_the_reason(ranks: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: Path) -> str:
        comm.barrier()
        meet(comm, folder, "behind the barrier")
        if comm.rank == 0:
            time.sleep(0.2)  # the others may stand in the call, or come to it later
            comm.abort("the loss is NaN")
        with pytest.raises(isthmus.AbortedError) as caught:
            comm.all_reduce(np.ones(4))
        assert isinstance(comm.error, isthmus.AbortedError)
        return str(caught.value)

    assert all("the loss is NaN" in text for text in ranks(3, body, tmp_path))


def test_an_exception_in_a_with_block_reaches_the_other_ranks(threads: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        part = comm.split(0)
        assert part is not None
        if comm.rank == 0:
            with pytest.raises(KeyError), part:
                raise KeyError("weights")
        else:
            with pytest.raises(isthmus.PeerLostError, match="rank 0 .* raised KeyError"), part:
                part.barrier()

    threads(2, body)


def test_a_killed_rank_is_named(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(isthmus.PeerLostError, match="rank 1"):
            comm.all_reduce(np.ones(4))

    processes(3, body, expect={1: -signal.SIGKILL})


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_a_blocking_call_with_keyboard_interrupt_and_aborts_for_the_others(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        comm.barrier()
        if comm.rank == 0:
            once_inside(comm, interrupt)
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(np.ones(4))
            assert isinstance(comm.error, isthmus.Error)
        else:
            until(lambda: comm.error is not None, "the abort")
            with pytest.raises(isthmus.Error):
                comm.all_reduce(np.ones(4))

    processes(2, body, fresh=True)


def test_ctrl_c_ends_a_wait(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, ended: Path) -> None:
        x = np.ones(4)
        if comm.rank == 0:
            work = comm.recv(x, 1, async_op=True)
            with pytest.raises(KeyboardInterrupt):
                threading.Timer(0.2, interrupt).start()
                work.wait()
            ended.touch()
        else:
            until(ended.exists, "the interrupt")

    processes(2, body, tmp_path / "ended", fresh=True)


def test_a_signal_handler_that_raises_nothing_leaves_the_call_alone(processes: Run, tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, handled: Path) -> int:
        seen: list[int] = []

        def handler(number: int, _frame: object) -> None:
            seen.append(number)
            handled.touch()

        signal.signal(signal.SIGUSR1, handler)
        comm.barrier()
        if comm.rank == 0:
            once_inside(comm, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        else:
            until(handled.exists, "the signal")
        x = comm.all_reduce(np.ones(4))
        assert x.tolist() == [2.0] * 4
        return len(seen)

    assert processes(2, body, tmp_path / "handled") == [1, 0]


@pytest.mark.parametrize("method", ["abort", "destroy"])
def test_a_signal_handler_may_end_the_communicator_that_the_call_waits_on(
    method: str, processes: Run, tmp_path: Path
) -> None:
    def body(comm: isthmus.Comm, folder: Path) -> None:
        signal.signal(signal.SIGUSR1, lambda _number, _frame: getattr(comm, method)())
        comm.barrier()
        meet(comm, folder, "out of the barrier")
        if comm.rank == 0:
            once_inside(comm, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            with pytest.raises(isthmus.AbortedError):
                comm.all_reduce(np.ones(4))
        else:
            with pytest.raises(isthmus.Error):
                comm.recv(np.ones(4), 0)

    processes(2, body, tmp_path)


def test_other_threads_run_while_one_waits(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        other = comm.split(0)
        assert other is not None

        def tick() -> None:
            for _ in range(20):
                time.sleep(0.01)
            other.send(np.ones(1), 1)

        if comm.rank == 1:  # comes when the other rank's thread has got its word through; else there is the deadline
            other.recv(np.empty(1), 0)
            comm.barrier()
            return
        thread = threading.Thread(target=tick)
        thread.start()
        comm.barrier()
        thread.join()

    processes(2, body)


def test_use_after_destroy_is_an_argument_error(threads: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        comm.barrier()
        comm.destroy()
        comm.destroy()  # once more does nothing
        assert comm.destroyed and "destroyed" in repr(comm)
        for call in (
            lambda: comm.barrier(),
            lambda: comm.all_reduce(np.ones(1)),
            comm.topology,
            comm.dump,
            lambda: comm.split(0),
        ):
            with pytest.raises(isthmus.ArgumentError, match="the communicator was destroyed"):
                call()
        assert isinstance(comm.error, isthmus.ArgumentError)

    threads(2, body)


def test_destroy_while_another_thread_is_inside_a_call_ends_the_call(threads: Run) -> None:
    def body(comm: isthmus.Comm, done: threading.Barrier) -> None:
        comm.barrier()
        done.wait(2 * SOON)  # both are out of it: an abort ends what is about to end well elsewhere, too
        if comm.rank == 0:
            caught: list[BaseException] = []

            def inside() -> None:
                try:
                    comm.barrier()
                except isthmus.Error as error:
                    caught.append(error)

            thread = threading.Thread(target=inside)
            thread.start()
            until(lambda: inside_a_call(comm), "the call")
            comm.destroy()
            thread.join(SOON)
            assert not thread.is_alive() and isinstance(caught[0], isthmus.AbortedError)
        done.wait(2 * SOON)

    threads(2, body, threading.Barrier(2))


def test_a_forked_child_may_not_use_it_but_the_fork_is_harmless(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                comm.all_reduce(np.ones(1))
            except isthmus.ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert comm.all_reduce(np.ones(1))[0] == 2.0

    processes(2, body)


def test_a_program_that_forgets_to_destroy_ends_by_itself() -> None:
    program = (
        "import isthmus, array\n"
        "comm = isthmus.init(0, 1, unique_id=isthmus.unique_id())\n"
        "x = array.array('f', [1.0])\n"
        "work = comm.recv(x, 0, async_op=True)\n"  # never completes
        "keep = (comm, work)\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON, check=False)
    assert ended.returncode == 0, ended.stderr


def test_an_exception_that_names_a_file_whose_name_is_no_utf_8_stays_itself_and_is_told(threads: Run) -> None:
    name = os.fsdecode(b"weights-\xff")

    def body(comm: isthmus.Comm) -> None:
        part = comm.split(0)
        assert part is not None
        if comm.rank == 0:
            with pytest.raises(ValueError, match="bad file weights"), part:
                raise ValueError(f"bad file {name}")
        else:
            with pytest.raises(isthmus.PeerLostError, match="rank 0 .* raised ValueError: bad file weights"), part:
                part.barrier()

    threads(2, body)
