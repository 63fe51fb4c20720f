"""A process with the simulated device of torch, in which tests run their bodies."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import torch

from devices import Acl, Cuda
from isthmus import rehearse
from patience import SOON, patient
from ranks import RUNNER, by_value, forked


@contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """Over there: the stream goes no further until the block ends.

    Nothing may be allocated in it: the driver would wait for the stream. What waits all the same goes on in the end.
    """
    vendor = {"cuda": Cuda, "npu": Acl}[torch.rehearsal.vendor()]
    go_on = vendor().hold(stream.native_handle)
    late = threading.Timer(SOON, go_on)
    late.start()
    try:
        yield
    finally:
        late.cancel()
        go_on()


class DeviceProcess:
    """Calls functions in a process that finds the simulated libraries of a vendor, with `rehearsal_torch` registered."""

    def __init__(self, switches: Mapping[str, str] | None = None, vendor: str = "nvidia") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-device-")
        address = f"{self._folder.name}/calls"
        Path(self._folder.name, "task").write_bytes(by_value((serve, (address,), False)))
        given = {"DEVICES": "2", "QUIET": "1", **(switches or {})}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(0.1)
            with forked(("torch_preloaded",)), mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
                command = [sys.executable, str(RUNNER), self._folder.name]
                # In which order torch adds hangs on its number of threads, and a thread of the device may have another one.
                self._job = rehearse.start(command, f"{vendor}:1", switches=given)
            while True:
                try:
                    self._calls = Connection(listener.accept()[0].detach())
                    return
                except TimeoutError:
                    if self._job.processes[0].poll() is not None:
                        raise AssertionError(f"the process died:\n{self.end()[1]}") from None

    def __call__(self, body: Callable[..., Any], *arguments: Any) -> Any:
        """body(*arguments) over there. What it raises is raised here, with the traceback of there."""
        try:
            self._calls.send_bytes(by_value((body, arguments)))
            good, value = pickle.loads(self._calls.recv_bytes())
        except (ConnectionError, EOFError):
            raise AssertionError(f"the process died:\n{self.end()[1]}") from None
        assert good, value
        return value

    def end(self) -> tuple[int, str]:
        """The exit status, after the process was told to end, and what it said on stderr."""
        with self._folder, self._job:
            if hasattr(self, "_calls"):
                self._calls.close()
            (ended,) = self._job.wait(patient(60))
        return ended.returncode, ended.stderr


def serve(address: str) -> None:
    """Over there: runs what comes, until there is nobody to send it."""
    from isthmus import rehearsal_torch

    rehearsal_torch.register()
    calls = Client(address)
    while True:
        try:
            body, arguments = pickle.loads(calls.recv_bytes())
        except EOFError:
            return
        try:
            answer = cloudpickle.dumps((True, body(*arguments)))
        except BaseException:
            answer = cloudpickle.dumps((False, traceback.format_exc()))
        del body, arguments  # nothing of a test outlives it
        calls.send_bytes(answer)
