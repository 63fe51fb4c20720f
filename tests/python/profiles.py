"""Profiles written by hand, and the command that writes real ones. Rates in profiles written here are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import isthmus
from patience import patient

HOST = ("memory_copy", "shm_exchange", "tcp_loopback", "reduce_float32", "reduce_bfloat16")


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "COLUMNS": "250", **(env or {})}
    words = [sys.executable, "-m", "isthmus", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=patient(120), check=False, env=whole)


def written(path: Path, rates: dict[str, float], **more: Any) -> str:
    entries = [
        {"name": name, "unit": "bytes/s", "median": rate, "min": rate, "max": rate, "repetitions": 5}
        for name, rate in rates.items()
    ]
    head = {"schema": 1, "isthmus": isthmus.__version__, "host": os.uname().nodename, "date": "", "simulated": False}
    path.write_text(json.dumps({**head, **more, "entries": entries}))
    return str(path)


def host_rates(bridge: float) -> dict[str, float]:
    return {**dict.fromkeys(HOST, 5e9), "tcp_loopback": bridge, "shm_exchange": 2 * bridge}


def star_of(size: int) -> dict[str, int]:
    """What a profile says of the star."""
    return {"bytes": size, "min": size, "max": size, "repetitions": 9}


def on_islands(comm: isthmus.Comm, body: Callable[[isthmus.Comm], Any], labels: str, **settings: Any) -> Any:
    """body() in a communicator of these ranks with a label, and settings, for each: a value or a list; None: not given."""
    unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
    comm.broadcast(unique_id)
    all_mine = {name: value[comm.rank] if isinstance(value, list) else value for name, value in settings.items()}
    mine = {name: value for name, value in all_mine.items() if value is not None}
    options: dict[str, Any] = {"island": labels[comm.rank], "bridge": "tcp", "settings": mine}
    with isthmus.init(comm.rank, comm.size, unique_id=bytes(unique_id), **options) as other:
        return body(other)
