"""Processes that have imported everything and used nothing, and from which ranks fork: one starts in milliseconds.

Popen here takes the place of subprocess.Popen in isthmus.launch, which says what a rank is told; it is set after the fork.
There is a zygote for each set of variables that a process reads when it starts. LD_LIBRARY_PATH would be one of them, as its
first folder makes a process a rank of a vendor: there a zygote names a descriptor, at which a rank puts its folder.

Protocol, a packet each: ("start", task, environment, folder of libraries) with the descriptors of stdout and stderr, whose
answer is the pid; and ("status", pid), whose answer is the exit status, when that process has ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

HERE = Path(__file__).resolve().parent
# What tests' functions use. pytest's own part is what its assertions call.
MODULES = ("pytest", "_pytest.assertion.rewrite", "devices", "events", "islands", "matrix", "profiles", "rank_main")
MOST = 3  # zygotes at one time; the one that was not used for longest ends
_AT_START = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "PYTHON")
_LATE = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED")
_LARGEST = 1 << 17  # of a packet
_PYTHONPATH = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])  # before any test adds to it


class Zygote:
    """`libraries` are the folders of LD_LIBRARY_PATH behind the one that each rank has."""

    def __init__(self, environment: Mapping[str, str], libraries: Sequence[str], modules: Sequence[str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        told = {name: value for name, value in environment.items() if not name.startswith(("ISTHMUS_", "REHEARSAL_"))}
        # Threads of a library for linear algebra would not be there after a fork.
        told.update(OPENBLAS_NUM_THREADS="1", PYTHONUNBUFFERED="1", PYTHONPATH=_PYTHONPATH)
        with theirs, tempfile.TemporaryDirectory(prefix="isthmus-no-libraries-") as empty:
            place = os.open(empty, os.O_RDONLY | os.O_DIRECTORY)
            told["LD_LIBRARY_PATH"] = os.pathsep.join([f"/proc/self/fd/{place}", *libraries])
            inherited = [theirs.fileno(), place]
            command = [sys.executable, str(HERE / "zygotes.py"), *map(str, inherited), *modules]
            self._process = subprocess.Popen(command, pass_fds=inherited, env=told, stdin=subprocess.DEVNULL)
            os.close(place)
            self._answer()  # it has imported everything

    def start(self, task: str, environment: Mapping[str, str], libraries: str | None, outputs: Sequence[int]) -> int:
        return self._ask(("start", task, dict(environment), libraries), outputs)

    def status(self, pid: int) -> int:
        return self._ask(("status", pid))

    def _ask(self, request: tuple[Any, ...], descriptors: Sequence[int] = ()) -> int:
        with self._one_at_a_time:
            socket.send_fds(self._requests, [pickle.dumps(request)], descriptors)
            return self._answer()

    def _answer(self) -> int:
        self.well = False  # and stays so where a test's limit ends the wait: that answer would be taken for the next one
        data = self._requests.recv(_LARGEST)
        assert data, "the zygote has ended"
        self.well = True
        return int(pickle.loads(data))

    def close(self) -> None:
        self._requests.close()
        self._process.wait(30)


_ZYGOTES: OrderedDict[Any, Zygote] = OrderedDict()


def libraries_of(environment: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """The first folder of LD_LIBRARY_PATH, where it is not one of this process's own, and the others."""
    mine, theirs = (list(filter(None, e.get("LD_LIBRARY_PATH", "").split(os.pathsep))) for e in (os.environ, environment))
    return (None, tuple(theirs)) if not theirs or theirs[0] in mine else (theirs[0], tuple(theirs[1:]))


def zygote_for(environment: Mapping[str, str], modules: Sequence[str]) -> Zygote:
    """The one for processes that start with these variables, and that has these modules, too."""
    at_start = {n: v for n, v in environment.items() if n.startswith(_AT_START) and n not in _LATE}
    _, libraries = libraries_of(environment)
    key = tuple(sorted(at_start.items())), libraries, tuple(modules)
    if key not in _ZYGOTES or not _ZYGOTES[key].well:
        _ZYGOTES.pop(key, None)
        while len(_ZYGOTES) >= MOST:
            _ZYGOTES.popitem(last=False)[1].close()
        _ZYGOTES[key] = Zygote(environment, libraries, modules)
    _ZYGOTES.move_to_end(key)
    return _ZYGOTES[key]


@atexit.register
def _close() -> None:
    while _ZYGOTES:
        _ZYGOTES.popitem()[1].close()


class Popen:
    """A rank that was forked, with what isthmus.launch uses of subprocess.Popen. `command` ends with the task's folder."""

    stdout = stderr = None

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes], modules: Sequence[str]
    ) -> None:
        self._zygote = zygote_for(env, modules)
        self.pid = self._zygote.start(command[-1], env, libraries_of(env)[0], [stdout.fileno(), stderr.fileno()])
        self.returncode: int | None = None
        # The number is that process's until its status has been asked for.
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self) -> int | None:
        return self._ended(None)

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], seconds)[0]:
            self.returncode = self._zygote.status(self.pid)
            os.close(self._pidfd)
        return self.returncode


def in_place_of_subprocess(modules: Sequence[str] = ()) -> SimpleNamespace:
    """What isthmus.launch uses of the module `subprocess`, with ranks that are forked."""

    def popen(command: Sequence[str], *, stdin: int, **options: Any) -> Popen:
        assert stdin == subprocess.DEVNULL  # as the zygote has it
        return Popen(command, modules=modules, **options)

    return SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)


def serve(requests: socket.socket, place: int) -> Path | None:
    """Forks whenever it is asked. In a rank it returns the task's folder, at the end None."""
    requests.send(pickle.dumps(0))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 2)
        if not packet:
            return None
        kind, *what = pickle.loads(packet)
        if kind == "status":
            answer = os.waitstatus_to_exitcode(os.waitpid(what[0], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                task, environment, libraries = what
                become(environment, descriptors)
                if libraries:
                    there = os.open(libraries, os.O_RDONLY | os.O_DIRECTORY)
                    os.dup2(there, place, inheritable=False)
                    os.close(there)
                return Path(task)
            for descriptor in descriptors:
                os.close(descriptor)
        requests.send(pickle.dumps(answer))


def become(environment: Mapping[str, str], outputs: Sequence[int]) -> None:
    """Makes this process what a fresh one with that environment and these outputs would be."""
    for i, descriptor in enumerate(outputs):
        os.dup2(descriptor, i + 1)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    path = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [entry for entry in path if entry not in sys.path]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for ranks, which say what it does
    for name in (*MODULES, *sys.argv[3:]):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be there after a fork"
    gc.collect()
    gc.freeze()
    task = serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    if task is not None and sys.modules["rank_main"].run(task):
        end()


def end() -> NoReturn:
    """Ends a rank whose communicator has ended, as a program ends: threads, exit functions, and the ends of libraries. (What
    it writes goes out at once: PYTHONUNBUFFERED.)

    Its modules alone are not taken apart, object by object. That took most of the processor time of a short rank: it writes
    to each page that the rank has from the zygote, so each was copied.
    """
    threading._shutdown()  # type: ignore[attr-defined, unused-ignore]
    atexit._run_exitfuncs()
    gc.collect()
    ctypes.PyDLL(None).exit(0)
    raise AssertionError("exit() has come back")


if __name__ == "__main__":
    main()
