"""Fixtures of the fault tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import jobs

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from islands import need_oneccl


@pytest.fixture(scope="session")
def zygote() -> Iterator[jobs.Zygote]:
    started = jobs.Zygote()
    yield started
    started.close()


@pytest.fixture(scope="session")
def oneccl() -> None:
    """Intel's library, without which a test that asks for this is skipped, or fails (islands.need_oneccl)."""
    need_oneccl()


@pytest.fixture(autouse=True)
def by_value(request: pytest.FixtureRequest) -> None:
    """A test's functions travel to the ranks by value: the ranks cannot import the test's module."""
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(params=jobs.SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """A test that takes this is run twice: over shared memory, and with TCP between two islands."""
    return str(request.param)


_REPORT: list[str] = []


@pytest.fixture(scope="session")
def report() -> list[str]:
    """Lines that are printed at the end of the run."""
    return _REPORT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _REPORT:
        terminalreporter.section("faults")
        for line in _REPORT:
            terminalreporter.write_line(line)
