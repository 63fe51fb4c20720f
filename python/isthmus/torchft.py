"""A process group for torchft: it is made anew whenever the replicas of a job change, and never hangs meanwhile.

>>> from isthmus.torchft import ProcessGroupIsthmus
>>> manager = torchft.Manager(pg=ProcessGroupIsthmus(timeout=timedelta(seconds=10)), min_replica_size=2, ...)

A replica that is lost is an error of every operation on the others, at once; one that does not answer is an error at the
deadline, and the text names its rank. `abort` ends every wait in any thread. So no process has to be killed to end a
collective, and torchft's groups in subprocesses (ProcessGroupBaby...) are not needed.

Importing this module needs torchft; isthmus itself does not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

import isthmus.torch
from _isthmus_autoload import DEVICES

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError("isthmus.torchft needs torchft: pip install torchft") from error

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from isthmus.torch import Backend, Options

__all__ = ["ProcessGroupIsthmus"]

_T = TypeVar("_T")
_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM


class ProcessGroupIsthmus(ProcessGroupWrapper):  # type: ignore[misc]
    """A torchft process group whose replicas may have devices of several vendors.

    - **`timeout`**: how long `configure` waits for the other replicas, and the deadline of an operation whose options give
      none.
    - **`options`**: isthmus.torch.Options: island, bridge, settings.

    The group serves the CPU and the device that isthmus.torch chooses for the process.

    `configure` is one thread's at a time. Any thread may call the rest, also while another one shuts the group down:
    then `abort` and `set_timeout` have nothing to do there, and `errored` finds no failure of the group.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: Options | None = None) -> None:
        super().__init__(timeout)
        self._options = options
        self._lock = threading.Lock()  # of what follows, which an abort or a shutdown from another thread changes
        self._backend: Backend | None = None
        self._why: Exception | None = None  # of the last abort
        self._started: deque[dist.Work] = deque()  # operations that errored() has still to look at

    def getBackendName(self) -> str:
        return "torchft-isthmus"

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any, **names: Any) -> None:
        """Makes the group anew. Blocks until all `world_size` replicas have come to the prefix of `store_addr`.

        What was in flight in the group before ends in an error first. Raises where a replica does not come in time; then
        there is no group until the next call.
        """
        self.abort(errored=False)
        self.shutdown()
        with self._lock:
            self._why = None
            self._started.clear()
        super().configure(store_addr, replica_id, rank, world_size, *more, **names)

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        quorum = "" if self._quorum_id is None else f" quorum {self._quorum_id}"
        backend = isthmus.torch.make_backend(store, rank, world_size, self._timeout, f"torchft{quorum}", [], self._options)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(_CUSTOM)
        for device in DEVICES:
            group._register_backend(torch.device(device), _CUSTOM, backend)
        with self._lock:
            self._backend = backend
        return group

    def _wrap_work(self, work: dist.Work, opts: object) -> dist.Work:
        with self._lock:
            while self._started and self._started[0].is_completed():
                self._started.popleft()
            self._started.append(work)
        return work

    def abort(self, errored: bool = True) -> None:
        """Ends every operation, here and on the other replicas, and returns at once. Any thread; again is nothing new.

        The group is of no use until the next `configure`.
        """
        with self._lock:
            if errored and self._why is None:
                self._why = RuntimeError("the process group was aborted")
        self._ask(lambda backend: backend.abort())

    def errored(self) -> Exception | None:
        """Why the group must be configured anew, or None.

        First waits until every operation that was started has ended, the group's timeout for each at most.
        """
        while work := self._oldest():
            try:
                work.wait(self._timeout)  # with a timeout the thread waits also for a device
            except RuntimeError as error:
                if not work.is_completed():
                    return error
                # else the failure is the group's too, if it concerns more than this call
        with self._lock:
            if self._why is not None:
                return self._why
        text = self._ask(lambda backend: backend.failure())
        return None if text is None else RuntimeError(f"the process group has failed and is aborted: {text}")

    def shutdown(self) -> None:
        """Leaves the group. The replicas that are left hear of it when they next need this one.

        Any thread; again is nothing new.
        """
        with self._lock:
            backend, self._backend, self._pg = self._backend, None, None
        if backend is not None:
            backend.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """For `configure`, and for operations from now on whose options give no timeout."""
        super().set_timeout(timeout)
        self._ask(lambda backend: backend.set_timeout(timeout))

    def _ask(self, call: Callable[[Backend], _T]) -> _T | None:
        """call(backend), without the lock. None: there is no group, or another thread has shut it down meanwhile."""
        with self._lock:
            backend = self._backend
        if backend is None:
            return None
        try:
            return call(backend)
        except (RuntimeError, ValueError):  # ValueError: of a group that was shut down
            with self._lock:
                if self._backend is backend:
                    raise
            return None

    def _oldest(self) -> dist.Work | None:
        with self._lock:
            return self._started.popleft() if self._started else None
