"""Runs a test's function on several ranks: as processes that end with the test, or as threads of this process."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle

import isthmus
import zygotes
from isthmus import launch
from patience import patient

RUNNER = Path(__file__).with_name("rank_main.py")
_TESTS = Path(__file__).resolve().parents[1]
_STARTING = threading.Lock()  # what starts a job changes this process for a moment
DEADLINE = patient(60)  # of operations whose deadline no test is about


class RankError(AssertionError):
    """A rank raised. The text has its traceback."""


def run_processes(
    ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    islands: str | None = None,
    bridge: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    init: bool | Callable[[], isthmus.Comm] = True,
    expect: Mapping[int, int] | None = None,
    fresh: bool = False,
) -> list[Any]:
    """body(comm, *arguments) in `ranks` new processes; the results by rank. `init` makes the communicator, where
    isthmus.init() does not; where it is false, body gets none.

    `expect` maps a rank to the exit status it must have where that is not 0 (a killed one: -9); its result is None.
    The processes are forked from one that has Isthmus loaded. With `fresh` each is an interpreter of its own: for what a
    process does when it starts, and when it loads Isthmus.
    """

    def start(command: list[str], variables: Mapping[str, str]) -> launch.Job:
        return launch.start(command, ranks, islands=islands, bridge=bridge, env={**variables, **(env or {})})

    return run_task(start, body, arguments, init=init, timeout=timeout, expect=expect or {}, fresh=fresh)


def run_task(
    start: Callable[[list[str], Mapping[str, str]], launch.Job],
    body: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    init: bool | Callable[[], isthmus.Comm],
    timeout: float,
    expect: Mapping[int, int],
    fresh: bool = False,
    modules: Sequence[str] = (),
    complaint: str | None = None,
) -> list[Any]:
    """What run_processes does, with ranks that start(command, variables for all) starts.

    A rank that says `complaint` on stderr has failed, too. `modules` have been imported where the ranks are forked.
    """
    with tempfile.TemporaryDirectory(prefix="isthmus-test-") as folder:
        (Path(folder) / "task").write_bytes(by_value((body, tuple(arguments), init)))
        path = os.pathsep.join([str(RUNNER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        with _STARTING, forked(modules, fresh):
            job = start([sys.executable, str(RUNNER), folder], {"ISTHMUS_TIMEOUT": str(DEADLINE), "PYTHONPATH": path})
        with job:
            ended = job.wait(patient(timeout), keep_going=bool(expect))  # a rank that is to fail ends no other
        bad = {
            end.rank: f": exit status {end.returncode}, expected {expect.get(end.rank, 0)}"
            for end in ended
            if end.returncode != expect.get(end.rank, 0) or (complaint and complaint in end.stderr)
        }
        if bad:
            raise RankError(
                "\n".join(
                    f"--- rank {end.rank} of {len(ended)}{bad.get(end.rank, '')}\n{end.stdout[-2000:]}{end.stderr[-4000:]}"
                    for end in ended
                    if end.rank in bad or end.stderr
                )
            )
        answers = [Path(folder) / f"result.{rank}" for rank in range(len(ended))]
        return [pickle.loads(answer.read_bytes()) if answer.exists() else None for answer in answers]


@contextmanager
def forked(modules: Sequence[str] = (), fresh: bool = False) -> Iterator[None]:
    """What isthmus.launch starts meanwhile is forked from a zygote; with `fresh` it is started as always."""
    if fresh:
        yield
        return
    with mock.patch.object(launch, "subprocess", zygotes.in_place_of_subprocess(modules)):
        yield


def by_value(task: Any) -> bytes:
    """Pickled so that ranks need not import the modules of tests, and pytest with them."""
    tests = [module for name, module in list(sys.modules.items()) if name.startswith("test_") and _is_ours(module)]
    tests = [module for module in tests if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in tests:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(task)
    finally:
        for module in tests:
            cloudpickle.unregister_pickle_by_value(module)


def _is_ours(module: Any) -> bool:
    return _TESTS in Path(getattr(module, "__file__", None) or "/").parents


def run_threads(
    ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    islands: str | None = None,
    settings: Mapping[str, object] | None = None,
    timeout: float = DEADLINE,
) -> list[Any]:
    """body(comm, *arguments) on `ranks` threads; the results by rank. One that raises aborts the others' communicators."""
    labels = launch.parse_islands(islands, ranks)
    unique_id = isthmus.unique_id()
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []
    lock = threading.Lock()

    def one(rank: int) -> None:
        try:
            options: dict[str, Any] = {"island": labels[rank], "settings": settings, "timeout": timeout}
            with isthmus.init(rank, ranks, unique_id=unique_id, **options) as comm:
                results[rank] = body(comm, *arguments)
        except BaseException as error:
            with lock:
                errors.append((rank, error))

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        if thread.is_alive():
            raise RankError(f"{thread.name} did not end within 600 s")
    if errors:  # the first one is the cause; the others were aborted because of it
        rank, error = errors[0]
        raise RankError(f"rank {rank} of {ranks} raised {type(error).__name__}: {error}") from error
    return results
