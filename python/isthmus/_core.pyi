from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from ._errors import Error

_A = TypeVar("_A")

ANY_SOURCE: int

class Work:
    def wait(self, timeout: float | None = None) -> Any: ...
    @property
    def done(self) -> bool: ...
    @property
    def exception(self) -> Error | None: ...
    @property
    def source(self) -> int | None: ...
    @property
    def result(self) -> Any: ...
    @property
    def sequence(self) -> int: ...
    @property
    def duration(self) -> float | None: ...

class Comm:
    @overload
    def __init__(
        self,
        *,
        rank: int = -1,
        world_size: int = -1,
        address: str | None = None,
        unique_id: bytes | None = None,
        island: str | None = None,
        bridge: str | None = None,
        timeout: float | None = None,
        name: str | None = None,
        settings: str | None = None,
        exchange: Callable[[bytes], bytes] | None = None,
    ) -> None: ...
    @overload
    def __init__(self, handle: object) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def members(self) -> tuple[int, ...]: ...
    @property
    def destroyed(self) -> bool: ...
    @property
    def sequence(self) -> int: ...
    @property
    def error(self) -> Error | None: ...
    @property
    def timeout(self) -> float: ...
    def destroy(self) -> None: ...
    def _raised(self, what: str) -> None: ...
    def _others_busy(self) -> bool: ...
    def abort(self, reason: str = "aborted by the program") -> None: ...
    def revoke(self, reason: str) -> None: ...
    def set_timeout(self, seconds: float) -> None: ...
    def _split(self, color: int, key: int, name: str | None) -> object | None: ...
    def _shrink(self, exclude: list[int], mode: int, dense: bool, name: str | None) -> object: ...
    def _ticket(self, timeout: float | None) -> str: ...
    def _joiners(self, ticket: str) -> int: ...
    def _reconfigure(
        self, exclude: list[int], ticket: str | None, n: int, slots: list[int] | None, dense: bool
    ) -> None: ...
    def _grow(self, ticket: str, n: int, slots: list[int] | None, name: str | None) -> object: ...
    def _agree(
        self, flags: int, failed: list[int], allow_minority: bool, timeout: float | None
    ) -> tuple[int, list[int]]: ...
    def _topology(self) -> str: ...
    def _dump(self) -> str: ...
    def _measure_leader_exchange(self, seconds: float) -> str: ...
    def _explain(self, collective: str, count: int, dtype: object, op: str, root: int) -> str: ...
    @overload
    def all_reduce(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A: ...
    @overload
    def all_reduce(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> Work: ...
    @overload
    def all_reduce(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A | Work: ...
    @overload
    def reduce(
        self,
        x: _A,
        root: int = 0,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A | None: ...
    @overload
    def reduce(
        self,
        x: _A,
        root: int = 0,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> Work: ...
    @overload
    def reduce(
        self,
        x: _A,
        root: int = 0,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A | Work | None: ...
    @overload
    def broadcast(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A: ...
    @overload
    def broadcast(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> Work: ...
    @overload
    def broadcast(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A | Work: ...
    @overload
    def all_gather(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def all_gather(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def all_gather(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def reduce_scatter(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def reduce_scatter(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        x: _A,
        op: str = "sum",
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def all_to_all(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A: ...
    @overload
    def all_to_all(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> Work: ...
    @overload
    def all_to_all(
        self,
        x: _A,
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
        keep_input: bool = False,
        commit: bool = False,
    ) -> _A | Work: ...
    @overload
    def gather(
        self,
        x: _A,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | None: ...
    @overload
    def gather(
        self,
        x: _A,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def gather(
        self,
        x: _A,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work | None: ...
    @overload
    def scatter(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def scatter(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def scatter(
        self,
        x: _A | None = None,
        root: int = 0,
        out: _A | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def all_gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def all_gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def all_gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def reduce_scatter_v(
        self,
        x: _A,
        counts: Sequence[int],
        op: str = "sum",
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def reduce_scatter_v(
        self,
        x: _A,
        counts: Sequence[int],
        op: str = "sum",
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def reduce_scatter_v(
        self,
        x: _A,
        counts: Sequence[int],
        op: str = "sum",
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        scale: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def all_to_all_v(
        self,
        x: _A,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        out: _A | None = None,
        send_displs: Sequence[int] | None = None,
        recv_displs: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def all_to_all_v(
        self,
        x: _A,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        out: _A | None = None,
        send_displs: Sequence[int] | None = None,
        recv_displs: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def all_to_all_v(
        self,
        x: _A,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        out: _A | None = None,
        send_displs: Sequence[int] | None = None,
        recv_displs: Sequence[int] | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | None: ...
    @overload
    def gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def gather_v(
        self,
        x: _A,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work | None: ...
    @overload
    def scatter_v(
        self,
        x: _A | None,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A: ...
    @overload
    def scatter_v(
        self,
        x: _A | None,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def scatter_v(
        self,
        x: _A | None,
        counts: Sequence[int],
        root: int = 0,
        out: _A | None = None,
        displs: Sequence[int] | None = None,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> _A | Work: ...
    @overload
    def barrier(
        self, *, async_op: Literal[False] = False, timeout: float | None = None, stream: int | None = None
    ) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], timeout: float | None = None, stream: int | None = None) -> Work: ...
    @overload
    def barrier(self, *, async_op: bool, timeout: float | None = None, stream: int | None = None) -> Work | None: ...
    @overload
    def send(
        self,
        x: object,
        peer: int,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> None: ...
    @overload
    def send(
        self,
        x: object,
        peer: int,
        tag: int = 0,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def send(
        self,
        x: object,
        peer: int,
        tag: int = 0,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work | None: ...
    @overload
    def recv(
        self,
        x: object,
        peer: int = -1,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> int: ...
    @overload
    def recv(
        self,
        x: object,
        peer: int = -1,
        tag: int = 0,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
        stream: int | None = None,
    ) -> Work: ...
    @overload
    def recv(
        self,
        x: object,
        peer: int = -1,
        tag: int = 0,
        *,
        async_op: bool,
        timeout: float | None = None,
        stream: int | None = None,
    ) -> int | Work: ...

def version() -> str: ...
def raised(what: str) -> None: ...
def raised_settle() -> None: ...
def raiser(waited: float) -> int: ...
def take_over_dumps() -> None: ...
def next_dump() -> str | None: ...
def dump_records() -> str: ...
def dump_written() -> None: ...
def settle_dumps(seconds: float) -> None: ...
def unique_id() -> bytes: ...
def join(
    ticket: str, slot: int, island: str | None, bridge: str | None, timeout: float | None, settings: str | None
) -> object: ...
def settings() -> str: ...
def context_stats() -> str: ...
def devices() -> str: ...
def libraries() -> str: ...
def ucx() -> str: ...
def measure(seconds: float) -> str: ...
def dtype_size(dtype: object) -> int: ...
def dtypes() -> list[str]: ...
def ops() -> list[str]: ...
def group_begin() -> None: ...
def group_end(async_op: bool = False) -> Work | None: ...
def group_cancel() -> None: ...
def destroy_all(seconds: float) -> None: ...
