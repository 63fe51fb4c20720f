"""What tests wait for instead of a time: that something holds, that a rank stands inside a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import isthmus
from patience import SOON


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Returns as soon as the condition holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {SOON} s"
        time.sleep(0.005)


def until_asleep(thread: threading.Thread, looks: int = 20) -> None:
    """Until it has slept at that many looks in a row, 10 ms apart, or ended. Who waits for a processor does not sleep."""
    seen = 0

    def sleeps() -> bool:
        nonlocal seen
        try:
            state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # the second where it ends between the opening and the reading
            return True
        seen = seen + 1 if state == "S" else 0
        time.sleep(0.01)
        return seen >= looks

    until(sleeps, "a thread that sleeps")


def meet(comm: isthmus.Comm, folder: Path, word: str) -> None:
    """Waits until all ranks have come here: by files, so also before what ends the communicator for all of them.

    A barrier does not do: who has come out of it may end another's, who is about to.
    """
    (folder / f"{word} {comm.rank}").touch()
    until(lambda: all((folder / f"{word} {rank}").exists() for rank in range(comm.size)), f"'{word}' of all ranks")


def inside_a_call(comm: isthmus.Comm) -> bool:
    """Whether an operation of this rank has begun and has not ended."""
    return any(entry["state"] == "running" for entry in comm.dump()["entries"])


def once_inside(comm: isthmus.Comm, action: Callable[[], object]) -> None:
    """Lets another thread do that when this rank stands inside its next operation."""

    def act() -> None:
        until(lambda: inside_a_call(comm), "an operation")
        action()

    threading.Thread(target=act, daemon=True).start()
