"""How patient the tests must be on this machine, as one factor: 1 where it is idle and quick, more where it stalls."""

from __future__ import annotations

import time

LOOP = 400_000
LOOP_SECONDS = 0.010  # of an idle core of the machines that the bounds were written on
WAKE_SECONDS = 0.050  # as late as a sleeper may wake without anybody being told to be patient
MOST = 20.0


def loop_seconds() -> float:
    begin = time.perf_counter()
    x = 0
    for i in range(LOOP):
        x ^= i
    return time.perf_counter() - begin


def latest_wake(seconds: float) -> float:
    """How late the latest of many short sleeps woke."""
    latest, end = 0.0, time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        time.sleep(0.005)
        latest = max(latest, time.perf_counter() - begin - 0.005)
    return latest


def measure(seconds: float = 2.0) -> float:
    slow = min(loop_seconds() for _ in range(10)) / LOOP_SECONDS
    late = latest_wake(seconds) / WAKE_SECONDS
    return round(min(MOST, max(1.0, slow, late)), 1)


if __name__ == "__main__":
    print(measure())
