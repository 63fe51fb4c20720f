"""Local rank processes: N copies of a command, each told its rank, the rendezvous and its island.

>>> from isthmus import launch
>>> with launch.start(["python", "train.py"], ranks=4, islands="a:2,b:2", bridge="tcp") as job:
...     results = job.wait(timeout=60)

For real clusters use torchrun, mpirun or srun; their variables are read by isthmus.init() directly.
"""

from __future__ import annotations

import os
import random
import re
import select
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from ._errors import ArgumentError

__all__ = ["Job", "Result", "environment", "free_port", "parse_islands", "parse_libraries", "start"]

# What another launcher may have left in our own environment; it would contradict what we tell the ranks.
_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_")
_LAUNCHER_NAMES = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"]
    + [f"ISTHMUS_{name}" for name in ("RANK", "WORLD_SIZE", "ADDRESS")]
)
_GRACE_S = 15.0  # after one rank failed: the library tells the others within a few seconds
# What ends a line. A carriage return alone does, too (progress bars), unless it came last: it may be half of an end.
_LINE_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")
# Names of the last ports that were given out, in the abstract namespace of Unix sockets: a name is one process's until it is
# closed, and holds in one network namespace, as a port does.
_reserved: deque[list[socket.socket]] = deque()
_MOST_RESERVED = 64
_DRAIN_S = 2.0  # how long the output of processes that the ranks have left behind is passed on


@dataclass(frozen=True)
class Result:
    """How one rank ended. The texts are empty where nothing was captured."""

    rank: int
    returncode: int
    stdout: str
    stderr: str


def free_port() -> int:
    """A TCP port that is free on the loopback interface now, and whose successor is free too.

    No other process that calls this gets either of them, as long as this one lives and has not asked for many more.
    """
    for _ in range(256):
        # Below the ports that the kernel gives to outgoing connections: one of those may be taken before it is used here.
        port = random.SystemRandom().randrange(20000, 32000)
        names = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        try:
            for successor, name in enumerate(names):
                name.bind(f"\0isthmus-port-{port + successor}")
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", port + successor))
        except OSError:
            _close(names)
            continue
        _reserved.append(names)
        while len(_reserved) > _MOST_RESERVED:
            _close(_reserved.popleft())
        return port
    raise ArgumentError("launch: found no two neighbouring free ports on 127.0.0.1")


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()


def parse_islands(text: str | None, ranks: int) -> list[str | None]:
    """The island of every rank. "a:2,b:2" is a a b b; "a,b,a,b" interleaves; None is no label for anybody."""
    if not text:
        return [None] * ranks
    labels: list[str | None] = []
    for part in text.split(","):
        label, colon, count = part.strip().partition(":")
        if not label or (colon and not count.isdecimal()):
            raise ArgumentError(f"islands={text}: '{part}' is not LABEL or LABEL:RANKS")
        labels += [label] * (int(count) if colon else 1)
    if len(labels) != ranks:
        raise ArgumentError(f"islands={text}: names {len(labels)} ranks, but there are {ranks}")
    return labels


def parse_libraries(text: str | None, labels: Sequence[str | None]) -> list[str | None]:
    """The collective library of every rank's island. "a=oneccl" serves island a with oneCCL; the others have none."""
    served: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        label, equals, library = part.strip().partition("=")
        if not equals or not library or label not in labels:
            raise ArgumentError(f"ccl={text}: '{part}' is not LABEL=LIBRARY with the label of an island")
        served[label] = library
    return [served.get(label or "") for label in labels]


def environment(
    rank: int,
    world_size: int,
    port: int,
    *,
    island: str | None = None,
    bridge: str | None = None,
    ccl: str | None = None,
    host: str = "127.0.0.1",
    extra: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """The environment of one rank: ours, less what another launcher left, plus the variables of Isthmus and torch.

    `host` is rank 0's address. `extra` is added to it; None takes a variable away.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _LAUNCHER_NAMES
    }
    if "ISTHMUS_RANK" in os.environ or "RANK" in os.environ:  # these say where this rank belongs
        for name in ("ISTHMUS_ISLAND", "ISTHMUS_BRIDGE"):
            env.pop(name, None)
    env.update(
        ISTHMUS_RANK=str(rank),
        ISTHMUS_WORLD_SIZE=str(world_size),
        ISTHMUS_ADDRESS=f"{host}:{port + 1}",
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    if island is not None:
        env["ISTHMUS_ISLAND"] = island
    if bridge is not None:
        env["ISTHMUS_BRIDGE"] = bridge
    if ccl is not None:
        env["ISTHMUS_CCL"] = ccl
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


@dataclass
class _Pipe:
    """What a rank writes to one of its two outputs."""

    source: IO[bytes]
    prefix: bytes
    to: int  # our own descriptor
    pending: bytes = b""

    def pass_on(self) -> bool:
        """Reads once, and writes the lines that are complete. False at the end, and where nobody reads ours any more."""
        data = os.read(self.source.fileno(), 1 << 16)
        text = self.pending + data
        lines, used = bytearray(), 0
        for end in _LINE_END.finditer(text):
            lines += self.prefix + text[used : end.end()]
            used = end.end()
        self.pending = text[used:]
        return _write(self.to, lines) and bool(data)

    def close(self) -> None:
        if self.pending:
            _write(self.to, self.prefix + self.pending.rstrip(b"\r") + b"\n")
        self.source.close()  # whoever still writes there notices


class _Relay:
    """Passes on what ranks write, line by line, each with its rank's prefix: to where our own output goes."""

    def __init__(self) -> None:
        self._pipes = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isthmus-relay", daemon=True)

    def add(self, source: IO[bytes], prefix: str, to: int) -> None:
        self._pipes.register(source, selectors.EVENT_READ, _Pipe(source, prefix.encode(), to))

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """The ranks have ended: passes on what is still in the pipes."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for key in list(self._pipes.get_map().values()):
            self._close(key)

    def _run(self) -> None:
        deadline = float("inf")
        while self._pipes.get_map():
            over = self._over.is_set()
            if over:
                deadline = min(deadline, time.monotonic() + _DRAIN_S)
            ready = self._pipes.select(0.1)
            # The ranks have ended and there is no end of file: a process that one of them started holds the pipe open.
            if over and (not ready or time.monotonic() > deadline):
                return
            for key, _ in ready:
                if not key.data.pass_on():
                    self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fileobj)
        key.data.close()


def _write(to: int, data: bytes | bytearray) -> bool:
    """Writes all of it; False if nobody reads there."""
    while data:
        try:
            data = data[os.write(to, data) :]
        except BlockingIOError:
            select.select([], [to], [])
        except OSError:
            return False
    return True


class Job:
    """Running ranks. As a context manager it leaves none behind."""

    def __init__(
        self,
        processes: list[subprocess.Popen[bytes]],
        outputs: list[tuple[IO[bytes], IO[bytes]]],
        relay: _Relay | None = None,
    ) -> None:
        self.at_end: list[Callable[[], None]] = []  # called once, when no rank runs any more
        self.processes = processes
        self._outputs = outputs
        self._relay = relay

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def wait(self, timeout: float | None = None) -> list[Result]:
        """Waits until all ranks have ended and tells how. The rest are killed at the deadline, or 15 s after a failure."""
        deadline = None if timeout is None else time.monotonic() + timeout
        failed = False
        while any(process.poll() is None for process in self.processes):
            now = time.monotonic()
            if not failed and any(process.returncode for process in self.processes):
                failed = True
                deadline = now + _GRACE_S if deadline is None else min(deadline, now + _GRACE_S)
            if deadline is not None and now >= deadline:
                break
            time.sleep(0.01)
        self.kill()
        return [self._result(rank) for rank in range(len(self.processes))]

    def _result(self, rank: int) -> Result:
        texts = ["", ""]
        if self._outputs:
            for i, stream in enumerate(self._outputs[rank]):
                stream.seek(0)
                texts[i] = stream.read().decode(errors="replace")
        return Result(rank, self.processes[rank].returncode, texts[0], texts[1])

    def kill(self) -> None:
        """Ends every rank that still runs, and waits for it."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        if self._relay:
            self._relay.finish()
        while self.at_end:
            self.at_end.pop()()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for pair in self._outputs:
            for stream in pair:
                stream.close()


def start(
    command: Sequence[str],
    ranks: int,
    *,
    islands: str | Sequence[str | None] | None = None,
    bridge: str | None = None,
    ccl: str | None = None,
    env: Mapping[str, str] | None = None,
    each: Sequence[Mapping[str, str | None]] | None = None,
    prefixes: Sequence[str] | None = None,
    capture: bool = True,
    port: int | None = None,
    host: str = "127.0.0.1",
    before: Sequence[Sequence[str]] | None = None,
) -> Job:
    """Starts `ranks` copies of `command` on this machine. `env` is added to every rank's environment.

    `islands` is their labels, as text ("a:2,b:2") or one for each rank. `each` has further variables for each rank; None
    takes one away. `ccl` names the libraries of islands that have one, as "a=oneccl". `host` is where rank 0 is reached.
    `before` has words that go before the command, for each rank, of a program that becomes the command (`nsenter`).
    With `prefixes`, one for each rank, every line of a rank's output goes where ours goes, behind its prefix. Else, with
    `capture`, the output is kept for Job.wait(); without, it goes where ours goes as it is.
    """
    if ranks < 1:
        raise ArgumentError(f"launch: ranks={ranks} must be 1 or more")
    labels = parse_islands(islands, ranks) if islands is None or isinstance(islands, str) else list(islands)
    for name, given in (("islands", labels), ("each", each), ("prefixes", prefixes), ("before", before)):
        if given is not None and len(given) != ranks:
            raise ArgumentError(f"launch: {name} has {len(given)} entries, but there are {ranks} ranks")
    if before is not None and shutil.which(command[0]) is None:  # they would say so, each in its own words
        raise ArgumentError(f"launch: cannot start {command[0]}: not found, or no program")
    libraries = parse_libraries(ccl, labels)
    base = free_port() if port is None else port
    processes: list[subprocess.Popen[bytes]] = []
    outputs: list[tuple[IO[bytes], IO[bytes]]] = []
    relay = _Relay() if prefixes is not None else None
    job = Job(processes, outputs, relay)
    try:
        for rank in range(ranks):
            extra = {**(env or {}), **(each[rank] if each else {})}
            variables = environment(
                rank, ranks, base, island=labels[rank], bridge=bridge, ccl=libraries[rank], host=host, extra=extra
            )
            out: IO[bytes] | int | None = None
            err: IO[bytes] | int | None = None
            if relay:
                out, err = subprocess.PIPE, subprocess.PIPE
            elif capture:
                kept = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # closed by Job
                outputs.append(kept)
                out, err = kept
            try:
                words = [*(before[rank] if before else ()), *command]
                process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except (FileNotFoundError, PermissionError) as error:
                raise ArgumentError(f"launch: cannot start {command[0]}: {error.strerror}") from None
            processes.append(process)
            if relay and prefixes and process.stdout and process.stderr:
                relay.add(process.stdout, prefixes[rank], 1)
                relay.add(process.stderr, prefixes[rank], 2)
        if relay:
            relay.start()
    except BaseException:
        job.kill()
        raise
    return job
