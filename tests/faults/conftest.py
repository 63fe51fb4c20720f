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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How soon a kill was noticed, by test_random's ranks."""
    properties = [one for report in terminalreporter.getreports("passed") for one in report.user_properties]
    noticed = sorted(seconds for name, value in properties if name == "noticed" for seconds in value)
    if noticed:
        p50, p99 = (noticed[min(len(noticed) - 1, int(q * len(noticed)))] * 1e3 for q in (0.5, 0.99))
        terminalreporter.section("faults")
        terminalreporter.write_line(
            f"a kill was noticed after {p50:.1f} ms (p50), {p99:.1f} ms (p99), {noticed[-1] * 1e3:.1f} ms (most) "
            f"of {len(noticed)} reports"
        )
