"""The program of one rank process of ranks.run_processes; a zygote's ranks (zygotes.py) run the same."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

import cloudpickle

import isthmus


def run(folder: Path) -> bool:
    """Whether the rank got a communicator for its function, which has left it nothing to end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background is born ignoring it
    body, arguments, init = pickle.loads((folder / "task").read_bytes())
    rank = int(os.environ["ISTHMUS_RANK"])
    if init:
        with (isthmus.init if init is True else init)() as comm:
            result = body(comm, *arguments)
    else:
        result = body(*arguments)
    (folder / f"result.{rank}").write_bytes(cloudpickle.dumps(result))
    return bool(init)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
