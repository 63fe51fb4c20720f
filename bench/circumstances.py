"""What a file of results says first: the command that made it, when, and on what machine."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def circumstances(command: str = "") -> dict[str, Any]:
    """To be asked before anything is measured: the load is that of others. `command` repeats the run; else the command
    line does."""
    program = Path(sys.argv[0]).resolve()
    name = str(program.relative_to(ROOT)) if program.is_relative_to(ROOT) else program.name
    return {
        "command": command or shlex.join(["python", name, *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime()),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
    }
