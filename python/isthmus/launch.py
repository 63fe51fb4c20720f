"""Starts local ranks: N copies of a command. Each copy is told its rank, the rendezvous and its island.

>>> from isthmus import launch
>>> with launch.start(["python", "train.py"], ranks=4, islands="a:2,b:2", bridge="tcp") as job:
...     results = job.wait(timeout=60)

For real clusters use torchrun, mpirun or srun. isthmus.init() reads their variables directly.
"""

from __future__ import annotations

import errno
import os
import random
import re
import select
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Any

from ._errors import ArgumentError
from ._processes import Below

__all__ = ["Job", "Result", "environment", "free_port", "parse_islands", "parse_libraries", "start"]

# Variables that another launcher may have left in this process's environment. They would contradict what the ranks are told.
_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_")
_LAUNCHER_NAMES = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"]
    + [f"ISTHMUS_{name}" for name in ("RANK", "WORLD_SIZE", "ADDRESS")]
)
_GRACE_S = 15.0  # how long the other ranks may run after one failed; the library tells them within a few seconds
# The end of a line. A carriage return alone ends a line too (progress bars), unless the carriage return is the last byte so
# far: a line feed may follow.
_LINE_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")
# Names for the last ports given out, in the abstract namespace of Unix sockets. A name belongs to one process until
# its socket is closed. A name holds in one network namespace, as a port does.
_reserved: deque[list[socket.socket]] = deque()
_MOST_RESERVED = 64
_END_S = 5.0  # how long Job.kill() waits for the end of processes that it has killed, and whose parent it is not
_DRAIN_S = 2.0  # how long, after the ranks' end, output of processes that the ranks have left behind is passed on


@dataclass(frozen=True)
class Result:
    """How one rank ended. `stdout` and `stderr` are empty where the output was not captured.

    `returncode` is the exit status, or minus the number of the signal that ended the process. `killed` says why the job
    itself killed the rank, as "still ran 15 s after rank 0 had failed". It is empty where the rank ended otherwise.
    """

    rank: int
    returncode: int
    stdout: str
    stderr: str
    killed: str = ""


def free_port() -> int:
    """A TCP port p that is free on 127.0.0.1 now, where p + 1 is free too. p is from 20000 to 31999.

    No other process that calls free_port() gets p or p + 1 while this process lives, and has not asked for 64 more ports.
    Raises ArgumentError where no such pair is found.
    """
    for _ in range(256):
        # The kernel gives higher ports to outgoing connections, and might give one away before a rank listens there.
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
    """The label of every rank's island, in the order of the ranks. "a:2,b:2" gives a a b b, "a,b,a,b" interleaves.

    None as the text gives no rank a label. Raises ArgumentError where the text does not name `ranks` ranks.
    """
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
    """The collective library of every rank's island, in the order of the ranks. None: the island has no library.

    With "a=oneccl" oneCCL serves island a. Raises ArgumentError for a label that no rank has.
    """
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
    """The environment of one rank.

    1. The environment of this process, without the variables of another launcher.
    2. The variables from which Isthmus and torch take rank, world size and rendezvous. `host` is rank 0's address. torch's
       rendezvous has `port`, and Isthmus' has `port + 1`.
    3. `extra`. The value None takes a variable away.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _LAUNCHER_NAMES
    }
    if "ISTHMUS_RANK" in os.environ or "RANK" in os.environ:  # this process is a rank: these two are about its own place
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
    """One of the two outputs of a rank."""

    source: IO[bytes]
    prefix: bytes
    to: int  # this process's descriptor, where the lines go
    pending: bytes = b""  # the beginning of a line whose end has not come

    def pass_on(self) -> bool:
        """Reads once, and writes the complete lines. False: the rank's output has ended, or nobody reads ours any more."""
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
        self.source.close()  # a process that still writes there gets an error


class _Relay:
    """Passes the ranks' output on to this process's own output, line by line, each line behind its rank's prefix.

        rank            relay thread                     Job.kill()
        writes     -->  reads, passes complete lines on
        ends                                             waits for the ranks, then finish()
                        reads up to 2 s longer           waits for the thread
                        ends                             closes the pipes
    """

    def __init__(self) -> None:
        self._pipes = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isthmus-relay", daemon=True)

    def add(self, source: IO[bytes], prefix: str, to: int) -> None:
        self._pipes.register(source, selectors.EVENT_READ, _Pipe(source, prefix.encode(), to))

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Called when the ranks have ended: waits until the output that is left in the pipes has been passed on."""
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
            # The ranks have ended, and a pipe has no end of file: a process that a rank started holds the pipe open.
            if over and (not ready or time.monotonic() > deadline):
                return
            for key, _ in ready:
                if not key.data.pass_on():
                    self._close(key)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fileobj)
        key.data.close()


def _write(to: int, data: bytes | bytearray) -> bool:
    """Writes all of `data`. False: nobody reads there any more."""
    while data:
        try:
            data = data[os.write(to, data) :]
        except BlockingIOError:
            select.select([], [to], [])
        except OSError:
            return False
    return True


class Job:
    """The running ranks of one start(). The end of a `with` block kills the ranks that still run (`kill`).

    Any thread may call `wait` and `kill`, one at a time.
    """

    def __init__(
        self,
        processes: list[subprocess.Popen[bytes]],
        outputs: list[tuple[IO[bytes], IO[bytes]]],
        relay: _Relay | None = None,
    ) -> None:
        self.at_end: list[Callable[[], None]] = []  # called once, when no rank runs any more
        self.processes = processes
        self.ended: list[int] = []  # the ranks that wait() has seen end, in that order
        self._outputs = outputs
        self._relay = relay

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def wait(self, timeout: float | None = None, *, keep_going: bool = False) -> list[Result]:
        """Waits until all ranks have ended. Returns one Result for each rank, in the order of the ranks.

        Ranks that still run are killed (`kill`) after `timeout` seconds (None: never), or 15 s after a rank failed (its
        returncode is not 0): whichever comes first.

        - **`keep_going`**: a rank that fails does not end the others. For a job that goes on without ranks that it loses
          (isthmus.elastic). `timeout` alone ends them then.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        why = f"still ran after {timeout:g} s, the timeout" if timeout is not None else ""
        failed = keep_going
        while None in (codes := self._codes()):
            now = time.monotonic()
            if not failed and any(codes):
                failed = True
                if now + _GRACE_S < deadline:
                    deadline = now + _GRACE_S
                    first = next(rank for rank in self.ended if codes[rank])
                    why = f"still ran {_GRACE_S:g} s after rank {first} had failed"
            if now >= deadline:
                break
            time.sleep(0.01)
        running = [rank for rank, code in enumerate(codes) if code is None]
        self.kill()
        codes = self._codes()
        killed = {rank for rank in running if codes[rank] == -signal.SIGKILL}
        return [self._result(rank, why if rank in killed else "") for rank in range(len(self.processes))]

    def _codes(self) -> list[int | None]:
        """How each rank has ended. None: it still runs."""
        codes = [process.poll() for process in self.processes]
        self.ended += [rank for rank, code in enumerate(codes) if code is not None and rank not in self.ended]
        return codes

    def _result(self, rank: int, killed: str) -> Result:
        texts = ["", ""]
        if self._outputs:
            for i, stream in enumerate(self._outputs[rank]):
                stream.seek(0)
                texts[i] = stream.read().decode(errors="replace")
        return Result(rank, self.processes[rank].returncode, texts[0], texts[1], killed)

    def kill(self) -> None:
        """Kills every rank that still runs, with the processes below it, and waits for their end.

        Below a rank are the processes that it has started, those that these have started, and so on, also in sessions
        of their own. A process whose parent has ended before is below nobody, and lives on: a daemon, and what a rank
        that has ended by itself has left behind. For the processes below ranks it waits 5 s at most.
        """
        running = [process for process in self.processes if process.poll() is None]
        below = Below([process.pid for process in running])
        try:
            below.stop()
        finally:
            try:
                below.kill()
            finally:
                for process in running:
                    process.kill()
        for process in self.processes:
            process.wait()
        below.wait(_END_S)
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


@contextmanager
def _signals_held() -> Iterator[None]:
    """What handlers of signals would do comes behind the block. Inside, a process has begun that nobody could end yet."""
    came: list[int] = []
    before: dict[int, Any] = {}
    held = True

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            came.append(number)
        else:  # its own handler is not back yet
            before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, hold)
        yield
    finally:
        held = False
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


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
    """Starts `ranks` copies of `command` on this machine. Raises ArgumentError where the command cannot be started.

    `Job.wait(timeout)` waits for their end. It kills the ranks that still run 15 s after one has failed:
    `Job.wait(keep_going=True)` is for a job that goes on without ranks that it loses (isthmus.elastic).

    - **`islands`**: the labels of the islands, as text ("a:2,b:2") or as one entry for each rank.
    - **`bridge`**: "auto", "shm", "tcp" or "ucx".
    - **`ccl`**: the libraries of islands that have one, as "a=oneccl".
    - **`env`**: variables for every rank.
    - **`each`**: further variables, one mapping for each rank. The value None takes a variable away.
    - **`prefixes`**: one for each rank. Every line of a rank's output goes to this process's output, behind the prefix.
    - **`capture`**: without `prefixes`, whether the output is kept for Job.wait(). If not, the output goes unchanged to this
      process's output.
    - **`port`**: the port of torch's rendezvous; Isthmus' has the next one. None takes free ones.
    - **`host`**: the address at which the ranks reach rank 0.
    - **`before`**: words before the command, one list for each rank. They start a program that becomes the command
      (`nsenter`).
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise ArgumentError(
            "launch: this process ignores SIGCHLD, so nobody can tell how a rank ends; call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL) before"
        )
    if ranks < 1:
        raise ArgumentError(f"launch: ranks={ranks} must be 1 or more")
    labels = parse_islands(islands, ranks) if islands is None or isinstance(islands, str) else list(islands)
    for name, given in (("islands", labels), ("each", each), ("prefixes", prefixes), ("before", before)):
        if given is not None and len(given) != ranks:
            raise ArgumentError(f"launch: {name} has {len(given)} entries, but there are {ranks} ranks")
    if before is not None and shutil.which(command[0]) is None:  # here once, in place of an error of each rank's own program
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
            words = [*(before[rank] if before else ()), *command]
            try:
                if relay:
                    out, err = subprocess.PIPE, subprocess.PIPE
                elif capture:
                    kept = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # closed by Job
                    outputs.append(kept)
                    out, err = kept
                with _signals_held():
                    process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                    processes.append(process)
            except OSError as error:
                if error.errno is None:  # not the system's: a handler of the program's has raised it
                    raise
                hint = "; a script begins with #! and its interpreter" if error.errno == errno.ENOEXEC else ""
                raise ArgumentError(f"launch: cannot start {command[0]}: {error.strerror}{hint}") from None
            if relay and prefixes and process.stdout and process.stderr:
                relay.add(process.stdout, prefixes[rank], 1)
                relay.add(process.stderr, prefixes[rank], 2)
        if relay:
            relay.start()
    except BaseException:
        job.kill()
        raise
    return job
