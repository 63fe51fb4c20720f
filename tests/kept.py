"""What tests compile for themselves is compiled once: by the first worker that asks, for all workers and for later runs."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

KEPT = Path(__file__).resolve().parents[1] / "build" / "suite" / "kept"


@cache
def version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], text=True, capture_output=True, check=True).stdout


def kept(name: str, parts: Iterable[str | bytes], make: Callable[[Path], None]) -> Path:
    """A folder that `make` has filled. `parts` are all that it depends on: other parts, another folder."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(b"%d\n" % len(data) + data)
    folder = KEPT / f"{name}-{state.hexdigest()[:24]}"
    if folder.is_dir():
        return folder
    KEPT.mkdir(parents=True, exist_ok=True)
    # Who waits for the lock finds the folder. One that was killed while it made something has left no folder of that name.
    with open(f"{folder}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=KEPT) as place:
                made = Path(place) / "made"
                made.mkdir()
                make(made)
                made.rename(folder)
    return folder
