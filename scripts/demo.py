#!/usr/bin/env python3
"""`make demo`: a training over devices of several makers, and behind it what a training that loses ranks said meanwhile.

The second one mostly waits, so it runs beside the first. Its silence limit is longer than by itself, as the processors are
busy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup import ROOT, VENV

FLEET = "nvidia:2,amd:1,ascend:1,cpu:1"
DIGITS = (VENV / "bin" / "isthmus", "rehearse", "--fleet", FLEET, "--", VENV / "bin" / "python", "examples/train_digits.py")
SURVIVES = (VENV / "bin" / "python", "examples/train_survives.py")


def beside(first: Sequence[str | Path], second: Sequence[str | Path]) -> int:
    """Runs both at once, and says what the second one said when the first has ended. The exit status of one that failed."""
    with tempfile.TemporaryFile() as said:
        late = subprocess.Popen(list(map(str, second)), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            ends = [subprocess.call(list(map(str, first)), cwd=ROOT, stdin=subprocess.DEVNULL), late.wait()]
        finally:
            late.wait()  # who interrupts one at a terminal interrupts both
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    return next((abs(end) for end in ends if end), 0)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("SURVIVES_SECONDS", "2")
    try:
        return beside((*DIGITS, "--device", "auto"), SURVIVES)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
