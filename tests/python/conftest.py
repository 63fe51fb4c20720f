"""Fixtures: `processes` and `threads` run a function on ranks; `ranks` runs the same test as both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from islands import need_oneccl
from ranks import run_processes, run_threads


@pytest.fixture
def processes() -> Callable[..., list[Any]]:
    return run_processes


@pytest.fixture
def threads() -> Callable[..., list[Any]]:
    return run_threads


@pytest.fixture(params=["threads", "processes"])
def ranks(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """A test that takes this is run twice: its ranks are threads, and processes."""
    return run_threads if request.param == "threads" else run_processes


@pytest.fixture(scope="session")
def oneccl() -> None:
    """Intel's library, without which a test that asks for this is skipped, or fails (islands.need_oneccl)."""
    need_oneccl()


_MATRIX: Counter[str] = Counter()
_OF_WORKERS = "isthmus_matrix"


@pytest.fixture
def matrix_counts() -> Counter[str]:
    """How many combinations each part of the matrix compared; printed at the end of the run."""
    return _MATRIX


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist: what a worker tells the process that prints
        session.config.workeroutput[_OF_WORKERS] = dict(_MATRIX)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _MATRIX.update(getattr(node, "workeroutput", {}).get(_OF_WORKERS, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MATRIX:
        terminalreporter.section("combinations compared with NumPy, bit for bit")
        for name, count in sorted(_MATRIX.items()):
            terminalreporter.write_line(f"{count:8d}  {name}")
        terminalreporter.write_line(f"{sum(_MATRIX.values()):8d}  in all")
