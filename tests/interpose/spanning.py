"""Jobs whose ranks are C programs for one simulated vendor each, behind the front doors. script.c says what they can do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from doors import DOORS, SANITIZER
from patience import SOON, patient
from said import HANDED as HANDED
from said import SPANS as SPANS

VENDORS = {"n": "nccl", "a": "rccl", "h": "hccl"}
LETTERS = {vendor: letter for letter, vendor in VENDORS.items()}
FLOATS = np.arange(5, dtype=np.float32)
INITS = {"init", "join", "scalable", "multi", "come"}
# Of a rank of NVIDIA's: no stream waits for the host, so calls return when the exchange is over.
WITHOUT_GATES = {"REHEARSAL_CUDA_NO_STREAM_VALUES": "1"}
DEADLINE = patient(60)  # of what does not fail: only a hang comes to it
GAP = patient(5)  # within which ranks that are ready to call init, and call it at once, have come to each other
TWO_DEVICES = ("group", "device 0", "join 0 3", "device 1", "join 2 3", "end")  # of one process; rank 1 has another


@dataclass
class Rank:
    """What one rank is told to do, and what it did."""

    vendor: str
    lines: list[str] = field(default_factory=list)
    inputs: list[bytes] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)  # words before the program's: "ip netns exec NAME"
    unset: list[str] = field(default_factory=list)  # variables that these tests set, and this rank lacks
    code: int | None = None
    printed: str = ""
    logged: str = ""
    output: bytes = b""

    def say(self, *lines: str) -> None:
        self.lines += lines


def fleet(vendors: str) -> list[Rank]:
    """ "nah": rank 0 on NVIDIA, rank 1 on AMD, rank 2 on Ascend."""
    return [Rank(VENDORS[letter]) for letter in vendors]


def environment(letter: str, behind: bool = True) -> dict[str, str]:
    """Of a program for that vendor, behind its door or not."""
    door = DOORS[VENDORS[letter]]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "LD_", "REHEARSAL_", "NCCL_", "HCCL_"))}
    given = {
        "LD_LIBRARY_PATH": str(door.simulated),
        "REHEARSAL_QUIET": "1",
        "REHEARSAL_DEVICES": "4",
        "ISTHMUS_TIMEOUT": str(DEADLINE),
        "ISTHMUS_INTERFACE": "lo",
        "VENDOR": VENDORS[letter],
    }
    if SANITIZER:
        given["LD_LIBRARY_PATH"] = f"{door.path.parent}:{door.simulated}"
    elif behind:
        given["LD_PRELOAD"] = str(door.path)
    return kept | given


def start(
    ranks: Sequence[Rank], programs: Mapping[str, Path], folder: Path, behind: bool = True
) -> list[subprocess.Popen[bytes]]:
    job = []
    used: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        (folder / f"script.{number}").write_text("\n".join(rank.lines) + "\n")
        (folder / f"in.{number}").write_bytes(b"".join(rank.inputs))
        device = used.setdefault(rank.vendor, 0)
        used[rank.vendor] += 1
        given = environment(LETTERS[rank.vendor], behind) | {"DEVICE": str(device)}
        words = [*rank.prefix, str(programs[rank.vendor]), str(number), str(len(ranks)), str(folder)]
        logs = [open(folder / f"{kind}.{number}", "wb") for kind in ("stdout", "stderr")]
        theirs = {name: value for name, value in (given | rank.environment).items() if name not in rank.unset}
        job.append(subprocess.Popen(words, env=theirs, stdout=logs[0], stderr=logs[1]))
        for log in logs:
            log.close()
    return job


def joins(rank: Rank) -> bool:
    """Whether it asks for a communicator."""
    return any(line.split()[0] in INITS for line in rank.lines)


def carried(ranks: Sequence[Rank]) -> None:
    """Isthmus carried their communicators, as the log says: right values alone are no sign of it."""
    for number, rank in enumerate(ranks):
        if joins(rank):
            assert SPANS in rank.logged, f"rank {number}: no communicator spanned: {rank.printed}{rank.logged}"


def run(
    ranks: Sequence[Rank],
    programs: Mapping[str, Path],
    folder: Path | None = None,
    seconds: float = 90,
    behind: bool = True,
    spans: bool = True,
    meanwhile: Callable[[list[subprocess.Popen[bytes]]], None] = lambda _: None,
) -> None:
    """Runs them all to their ends and notes what they did. One that has none has no code. `meanwhile` is called when they
    have been started.

    Where they are of several vendors, or of islands by their labels, Isthmus must have carried a communicator of each,
    unless the job is one (`spans`) in which that cannot be.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="spanning-") as made:
            return run(ranks, programs, Path(made), seconds, behind, spans, meanwhile)
    folder.mkdir(parents=True, exist_ok=True)
    islands = {(rank.vendor, rank.environment.get("ISTHMUS_ISLAND")) for rank in ranks if joins(rank)}
    crosses = spans and len(islands) > 1
    for rank in ranks if crosses else []:
        rank.environment.setdefault("ISTHMUS_LOG", "info")
    job = start(ranks, programs, folder, behind)
    try:
        meanwhile(job)
        until = time.monotonic() + patient(seconds)
        for process in job:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.01))
    finally:
        for number, (rank, process) in enumerate(zip(ranks, job, strict=True)):
            if process.poll() is None:
                process.kill()
                process.wait()
            else:
                rank.code = process.returncode
            rank.printed = (folder / f"stdout.{number}").read_text()
            rank.logged = (folder / f"stderr.{number}").read_text()
            output = folder / f"out.{number}"
            rank.output = output.read_bytes() if output.exists() else b""
    if crosses:
        carried(ranks)


def at_once(ranks: Sequence[Rank]) -> None:
    """What they say from now on begins when all of them have come to this."""
    for number, rank in enumerate(ranks):
        rank.say(f"touch ready.{number}", *(f"expect ready.{other}" for other in range(len(ranks))))


def eventually(what: Callable[[], object], why: str) -> None:
    until = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.01)


def inside_a_call(rank: subprocess.Popen[bytes], record: Path) -> Callable[[], bool]:
    """Whether an operation of that rank is running. ISTHMUS_DUMP has it write its flight record there."""

    def look() -> bool:
        rank.send_signal(signal.SIGUSR1)  # has it written anew
        return record.exists() and '"running"' in record.read_text()

    return look


def asleep(rank: subprocess.Popen[bytes]) -> bool:
    """Whether its first thread sleeps at ten looks in a row. Who waits for a processor does not sleep."""
    for _ in range(10):
        if Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            return False
        time.sleep(0.01)
    return True


def says(folder: Path, number: int, text: str) -> Callable[[], bool]:
    """Whether that rank's log has it."""
    log = folder / f"stderr.{number}"
    return lambda: log.exists() and text in log.read_text()


def check(ranks: Sequence[Rank]) -> None:
    """All ended well, and none was told of an error."""
    for number, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {number}: exit status {rank.code}: {rank.printed}{rank.logged}"


def given(number: int, times: int = 1) -> bytes:
    return (FLOATS * (number + 1)).tobytes() * times


def summed(ranks: int) -> bytes:
    return (FLOATS * (ranks * (ranks + 1) // 2)).tobytes()


def sums(ranks: list[Rank], *before: str, after: tuple[str, ...] = ("destroy",), maker: int = 0) -> None:
    """One all_reduce of each, with lines before and after it."""
    ranks[maker].say("id")
    for number, rank in enumerate(ranks):
        rank.say(*before, "all_reduce 7 0 5 0 0 0", "wait", *after)
        rank.inputs.append(given(number))
        rank.environment.setdefault("ISTHMUS_LOG", "info")
