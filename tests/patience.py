"""How patient tests are: bounds and deadlines of tests are given for an idle machine, and are multiplied by one factor.

scripts/test.py measures the machine and sets TEST_PATIENCE, at least 1; tests/cpp/patience.hpp is the same for C++.
"""

from __future__ import annotations

import os

FACTOR = max(1.0, float(os.environ.get("TEST_PATIENCE") or 1))
SOON = 30.0 * FACTOR
"""Seconds within which what must happen has happened. Only what hangs takes that long: no test passes by waiting for it."""

WHOLE = 10 * SOON
"""Seconds within which a whole program has ended that does many things one after the other, such as a benchmark."""


def patient(seconds: float) -> float:
    """These seconds of an idle machine, on this machine."""
    return seconds * FACTOR
