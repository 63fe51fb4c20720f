"""Ranks of islands that a real vendor's library serves: Intel's oneCCL for CPUs, which the set-up puts into build/oneccl."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isthmus
from ranks import run_processes

ONECCL = Path(__file__).resolve().parents[2] / "build" / "oneccl" / "libccl.so.2"
needs_oneccl = pytest.mark.usefixtures("oneccl")


def need_oneccl() -> None:
    """A test without the library is skipped; where the build must have fetched it, it fails."""
    if ONECCL.exists():
        return
    reason = "no oneCCL for this machine: make setup fetches it on x86-64"
    if os.environ.get("CI") and platform.machine() == "x86_64":
        pytest.fail(reason)
    pytest.skip(reason)


def settings_of(label: str | None) -> dict[str, object]:
    """Ranks with a capital for a label have oneCCL, the others no library."""
    return {"CCL": "oneccl", "CCL_LIBRARY": str(ONECCL)} if label and label[0].isupper() else {}


def join(**options: Any) -> isthmus.Comm:
    return isthmus.init(settings=settings_of(os.environ.get("ISTHMUS_ISLAND")), **options)


def run_islands(islands: str, body: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """body(comm, *arguments) on one process a rank, of islands written as in "A:2,b:1,A:1"."""
    ranks = sum(int(part.partition(":")[2] or 1) for part in islands.split(","))
    return run_processes(ranks, body, *arguments, islands=islands, init=join, **options)
