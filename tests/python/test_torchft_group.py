"""isthmus.torchft where a thread uses the group and another one shuts it down. (tests/upstream runs torchft itself.)"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

import isthmus

pytest.importorskip("torch")


class Wrapper:
    """What isthmus.torchft uses of torchft's class."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout, self._pg = timeout, None

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A ProcessGroupIsthmus with a backend that notes what is called."""
    theirs, wrappers = ModuleType("torchft"), ModuleType("torchft.process_group")
    wrappers.ProcessGroupWrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchft", theirs)
    monkeypatch.setitem(sys.modules, "torchft.process_group", wrappers)
    monkeypatch.delitem(sys.modules, "isthmus.torchft", raising=False)
    import isthmus.torchft as ours

    monkeypatch.delitem(sys.modules, "isthmus.torchft")  # nobody else gets the one with this wrapper
    made = ours.ProcessGroupIsthmus(timedelta(seconds=1))
    made._backend = Backend()
    return made


class Backend:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> str:
            if name != "shutdown":
                self.meanwhile()
                if "shutdown" in self.calls:  # as isthmus.torch says it
                    raise ValueError("group torchft was shut down (destroy_process_group)")
            self.calls.append(name)
            return "peer lost"

        return call


CALLS = {
    "abort": lambda group: group.abort(errored=False),
    "errored": lambda group: group.errored(),
    "set_timeout": lambda group: group.set_timeout(timedelta(seconds=2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_looks_for_the_backend_once_and_with_the_lock(group: Any, name: str) -> None:
    """So that it is there after the look, too, whatever another thread does between."""
    backend = group._backend
    looks: list[bool] = []

    class Watched(type(group)):  # type: ignore[misc]
        @property
        def _backend(self) -> Any:
            looks.append(self._lock.locked())
            return backend if len(looks) == 1 else None

    del group.__dict__["_backend"]
    group.__class__ = Watched
    CALLS[name](group)
    assert looks == [True]
    assert backend.calls == ["failure" if name == "errored" else name]


@pytest.mark.parametrize("name", CALLS)
def test_a_group_that_another_thread_shuts_down_meanwhile_is_none(group: Any, name: str) -> None:
    backend = group._backend

    def shut_down() -> None:
        other = threading.Thread(target=group.shutdown)
        other.start()
        other.join()

    backend.meanwhile = shut_down
    assert CALLS[name](group) is None
    assert backend.calls == ["shutdown"]
    assert group._backend is None and group._pg is None


def test_what_fails_while_the_group_is_there_is_told(group: Any) -> None:
    def fails() -> None:
        raise isthmus.ArgumentError("the timeout of a group must be positive")

    group._backend.meanwhile = fails
    for call in CALLS.values():
        with pytest.raises(isthmus.ArgumentError, match="must be positive"):
            call(group)


def test_of_two_threads_that_shut_a_group_down_one_does(group: Any) -> None:
    backend = group._backend
    both = threading.Barrier(2)

    def shut_down() -> None:
        both.wait()
        group.shutdown()

    threads = [threading.Thread(target=shut_down) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert backend.calls == ["shutdown"]
