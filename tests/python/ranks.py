"""Runs a test's function on several ranks: as processes that end with the test, or as threads of this process."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

import isthmus
from isthmus import launch

RUNNER = Path(__file__).with_name("rank_main.py")


class RankError(AssertionError):
    """A rank raised. The text has its traceback."""


def run_processes(
    ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    islands: str | None = None,
    bridge: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    init: bool = True,
    expect: Mapping[int, int] | None = None,
) -> list[Any]:
    """body(comm, *arguments) in `ranks` new processes; the results by rank. Without `init` body gets no communicator.

    `expect` maps a rank to the exit status it must have where that is not 0 (a killed one: -9); its result is None.
    """
    expected = dict(expect or {})
    with tempfile.TemporaryDirectory(prefix="isthmus-test-") as folder:
        task = Path(folder) / "task"
        task.write_bytes(cloudpickle.dumps((body, arguments, init)))
        command = [sys.executable, str(RUNNER), folder]
        path = os.pathsep.join([str(RUNNER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"ISTHMUS_TIMEOUT": "20", "PYTHONPATH": path, **(env or {})}
        with launch.start(command, ranks, islands=islands, bridge=bridge, env=variables) as job:
            ended = job.wait(timeout)
        bad = [end for end in ended if end.returncode != expected.get(end.rank, 0)]
        if bad:
            parts = [
                f"--- rank {end.rank} of {ranks}: exit status {end.returncode}, expected {expected.get(end.rank, 0)}\n"
                f"{end.stdout[-2000:]}{end.stderr[-4000:]}"
                for end in ended
                if end.returncode != expected.get(end.rank, 0) or end.stderr
            ]
            raise RankError("\n".join(parts))
        results = []
        for rank in range(ranks):
            answer = Path(folder) / f"result.{rank}"
            results.append(pickle.loads(answer.read_bytes()) if answer.exists() else None)
        return results


def run_threads(
    ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    islands: str | None = None,
    settings: Mapping[str, object] | None = None,
    timeout: float = 20,
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
