"""Runs a test's function on the ranks of a torch process group, each in a process of its own.

The processes are forked by a server that has torch and the backend loaded and nothing else running: that takes milliseconds
where a fresh interpreter takes seconds, and no rank inherits what the test process has done with the library.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import torch
import torch.distributed as dist

import isthmus.torch
from patience import SOON, patient

HERE = Path(__file__).resolve().parent
_PRELOADED = ("pytest", "torch_ranks", "torch_preloaded")  # what ranks import, imported once
GROUP_SECONDS = SOON  # no deadline of a group passes, but those that a test sets for one call


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    # Its own sys.path is what PYTHONPATH makes it. It passes over what it cannot import, which the ranks would notice.
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


class RankError(AssertionError):
    """A rank raised, died or did not end. The text has its traceback."""


def init_group(folder: str, rank: int, world: int, options: Any = None) -> None:
    """Joins the default group; the ranks of one test meet in a file."""
    dist.init_process_group(
        "isthmus",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=GROUP_SECONDS),
        pg_options=options,
    )


def _rank(connection: Any, folder: str, rank: int, world: int, task: bytes) -> None:
    body, arguments, env, seconds, init = cloudpickle.loads(task)
    assert set(_PRELOADED) <= set(sys.modules), "the server of this rank's process lacks a module"
    with _said(folder, rank).open("ab") as file:
        os.dup2(file.fileno(), 2)  # what a library or the C runtime says before it ends the process is in the failure's text
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1, seconds - 2), exit=False)
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    try:
        if init:
            init_group(folder, rank, world)
        result = body(*arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        connection.send_bytes(cloudpickle.dumps((True, result)))
    except BaseException:
        connection.send_bytes(cloudpickle.dumps((False, traceback.format_exc())))
        sys.stderr.flush()
        os._exit(1)  # a rank that failed may be in no state to say goodbye
    finally:
        faulthandler.cancel_dump_traceback_later()


def _said(folder: str, rank: int) -> Path:
    """What the rank's process wrote to stderr."""
    return Path(folder, f"stderr.{rank}")


def run(
    world: int,
    body: Callable[..., Any],
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    seconds: float = 120,
    init: bool = True,
    expect: Mapping[int, int] | None = None,
) -> list[Any]:
    """body(*arguments) on `world` ranks, within `seconds` of an idle machine; the results by rank.

    `expect` maps a rank to the exit status it must have where that is not 0 (-9 for a killed one); its result is None.
    Without `init` the body makes its own groups.
    """
    expected = dict(expect or {})
    seconds = patient(seconds)
    task = cloudpickle.dumps((body, arguments, dict(env or {}), seconds, init))
    with tempfile.TemporaryDirectory(prefix="isthmus-torch-") as folder:
        processes, ends = [], []
        for rank in range(world):
            mine, theirs = _context().Pipe(duplex=False)
            process = _context().Process(target=_rank, args=(theirs, folder, rank, world, task), name=f"rank {rank}")
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(mine)
        deadline = time.monotonic() + seconds
        results: list[Any] = [None] * world
        problems = []
        try:
            for rank, (process, end) in enumerate(zip(processes, ends, strict=True)):
                try:
                    if not end.poll(max(0.0, deadline - time.monotonic())):
                        problems.append(f"--- rank {rank}: no result within {seconds} s")
                        continue
                    good, value = cloudpickle.loads(end.recv_bytes())
                    if good:
                        results[rank] = value
                    else:
                        problems.append(f"--- rank {rank} raised\n{value}")
                except EOFError:  # it ended without a word
                    process.join(SOON)
                    if process.exitcode != expected.get(rank, 0) or rank not in expected:
                        problems.append(f"--- rank {rank}: exit status {process.exitcode} and no result")
            for rank, process in enumerate(processes):
                process.join(SOON if not problems else 0.1)
                if not problems and process.exitcode != expected.get(rank, 0):
                    problems.append(f"--- rank {rank}: exit status {process.exitcode}, expected {expected.get(rank, 0)}")
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join(SOON)
        if problems:
            for rank in range(world):
                if (file := _said(folder, rank)).exists():
                    problems.append(f"--- rank {rank} on stderr\n{file.read_text(errors='replace')[-20000:]}")
            raise RankError("\n".join(problems))
        return results


def raises(text: str, body: Callable[[], Any], kind: type[BaseException] = RuntimeError) -> str:
    """Calls body(), which must raise `kind` with `text` in its message; the message. For use inside ranks."""
    try:
        body()
    except kind as error:
        message = str(error)
        assert text in message, f"expected {text!r} in: {message}"
        return message
    raise AssertionError(f"nothing was raised; expected {kind.__name__} with {text!r}")


def store() -> dist.Store:
    """The default group's, which outlives it."""
    return dist.distributed_c10d._get_default_store()


def tell(word: str) -> None:
    """Lets the ranks go on that hear() this word."""
    store().set(f"word/{word}", "said")


def hear(*words: str) -> None:
    """Waits for all of these words. A rank that is to be late or absent stands here."""
    store().wait([f"word/{word}" for word in words], timedelta(seconds=patient(60)))


def heard(word: str) -> bool:
    """Whether somebody has said it."""
    return bool(store().check([f"word/{word}"]))


def once_inside(action: Callable[[], object]) -> None:
    """Does that when an operation of this rank has begun and has not ended."""
    deadline = time.monotonic() + SOON
    while not any(entry["state"] == "running" for entry in isthmus.torch.dump()["entries"]):
        assert time.monotonic() < deadline, f"no operation has begun within {SOON} s"
        time.sleep(0.005)
    action()


def backend() -> isthmus.torch.Backend:
    """This rank's backend object of the default group."""
    return isthmus.torch.backend_of()


def repository() -> Path:
    """The root of the sources."""
    return HERE.parent.parent
