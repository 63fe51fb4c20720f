"""A process with the simulated device of torch, in which tests run their bodies: one import of torch for many tests."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from devices import Acl, Cuda
from isthmus import rehearse


@contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """Over there: the stream goes no further until the block ends.

    Nothing may be allocated in it: the driver would wait for the stream. What waits all the same goes on after 30 s.
    """
    vendor = {"cuda": Cuda, "npu": Acl}[torch.rehearsal.vendor()]
    go_on = vendor().hold(stream.native_handle)
    late = threading.Timer(30, go_on)
    late.start()
    try:
        yield
    finally:
        late.cancel()
        go_on()


class DeviceProcess:
    """Calls functions in a process that finds the simulated libraries of a vendor, with `rehearsal_torch` registered."""

    def __init__(self, switches: Mapping[str, str] | None = None, vendor: str = "nvidia") -> None:
        libraries = [str(rehearse.folder().resolve() / vendor), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        given = {f"REHEARSAL_{name}": value for name, value in {"DEVICES": "2", "QUIET": "1", **(switches or {})}.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": os.pathsep.join(libraries),
                "PYTHONPATH": os.pathsep.join(path),
                "OMP_NUM_THREADS": "1",
                **given,
            },
        )

    def __call__(self, body: Callable[..., Any], *arguments: Any) -> Any:
        """body(*arguments) over there. What it raises is raised here, with the traceback of there."""
        assert self._process.stdin and self._process.stdout
        try:
            _write(self._process.stdin, cloudpickle.dumps((body, arguments)))
            good, value = pickle.loads(_read(self._process.stdout))
        except (BrokenPipeError, EOFError):
            raise AssertionError(f"the process died:\n{self.end()[1]}") from None
        assert good, value
        return value

    def end(self) -> tuple[int, str]:
        """The exit status, after the process was told to end, and what it said on stderr."""
        _, said = self._process.communicate(timeout=60)
        return self._process.returncode, said.decode()


def _write(stream: Any, data: bytes) -> None:
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def _read(stream: Any) -> bytes:
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    data: bytes = stream.read(struct.unpack("<q", header)[0])
    return data


def main() -> None:
    from isthmus import rehearsal_torch

    rehearsal_torch.register()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a body prints is no answer
    while True:
        try:
            body, arguments = pickle.loads(_read(sys.stdin.buffer))
        except EOFError:
            return
        try:
            answer = cloudpickle.dumps((True, body(*arguments)))
        except BaseException:
            answer = cloudpickle.dumps((False, traceback.format_exc()))
        del body, arguments  # nothing of a test outlives it
        _write(answers, answer)


if __name__ == "__main__":
    main()
