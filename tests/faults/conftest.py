"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import pytest

import jobs


@pytest.fixture(scope="session")
def zygote() -> Iterator[jobs.Zygote]:
    started = jobs.Zygote()
    yield started
    started.close()


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
