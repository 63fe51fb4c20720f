"""All ranks of a communicator come to hold one state: that of the rank that has finished most steps.

1. Each rank says how many steps it has finished (gather).
2. The one that has finished most, of several the lowest, tells all what it holds: names, shapes and digests (broadcast).
3. Each rank says which tensors it holds unlike (gather). Where none is, that is all.
4. Those tensors travel, one after another (broadcast). Who needs one checks its digest.
5. Each rank says what has not come as it should (gather). That is sent once more, and then refused by name.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from isthmus import _core
from isthmus._errors import AbortedError, MismatchError, PeerLostError
from isthmus.elastic import _frames
from isthmus.elastic._frames import Frame
from isthmus.elastic._state import Bytes, State, digest

NEW = -1  # the number of a rank that has none yet
# Steps finished, this rank's number, the first that nobody has had, bytes of the table, how many ranks the job is to have,
# what this rank can do with tickets.
_HELLO = struct.Struct("<QqqIIB")
_REFUSAL = 400  # bytes of a rank's reason
_TIMES = 2  # that a tensor is sent
# A tensor travels in pieces. Where a process of the job has other operations in flight, pieces are short, and take a
# tenth of the time.
_SHORT, _LONG, _SHARE = 256 << 10, 8 << 20, 10
_MOST_PAUSE, _LOOK = 5.0, 0.05  # seconds; whether the communicator has failed is looked at meanwhile


class Tickets(IntEnum):
    """What a rank can do with tickets."""

    NO = 0
    MAKES = 1  # it can publish one
    HAS = 2  # it has published one that serves


@dataclass(frozen=True)
class Members:
    """The ranks of a job, as one of them sees them.

    - **`rank`, `size`**: of the communicator. They change when a rank is lost or comes.
    - **`numbers`**: one number for each rank, which it keeps for life; nobody else gets it later. At first they are 0 to
      size - 1.
    - **`step`**: how many steps are finished.
    - **`received`**: the tensors of the state that this rank has just had from another one.
    """

    rank: int
    size: int
    numbers: tuple[int, ...]
    step: int = 0
    received: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.numbers[self.rank]


def _gather(comm: _core.Comm, mine: bytes) -> list[bytes]:
    """What each rank gives: as many bytes on all of them."""
    every = comm.all_gather(np.frombuffer(mine, np.uint8)).tobytes()
    return [every[at : at + len(mine)] for at in range(0, len(every), len(mine))]


def _give_way(comm: _core.Comm, took: float) -> bool:
    """Whether other operations need the links, behind a piece that took so many seconds here. Then all ranks pause."""
    waits = np.array([float(comm._others_busy()), took])
    comm.all_reduce(waits, "max")
    if not waits[0]:
        return False
    until = time.monotonic() + min((_SHARE - 1) * waits[1], _MOST_PAUSE, comm.timeout / 4)
    while comm.error is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK))
    return True


def _spread(comm: _core.Comm, mine: Bytes | None, length: int, source: int) -> Bytes:
    """The bytes that `source` gives. Without `mine` they come into memory of their own. Other communicators go first."""
    data = np.empty(length, np.uint8) if mine is None else mine
    at, piece = 0, _SHORT
    while at < length:
        begin = time.monotonic()
        comm.broadcast(data[at : at + piece], source)
        at += piece
        if at < length:
            piece = _SHORT if _give_way(comm, time.monotonic() - begin) else min(2 * piece, _LONG)
    return data


def _unlike(mine: list[Frame], theirs: list[Frame], source: int) -> str:
    """Why the two lists are not of the same tensors; empty where they are."""
    here, there = ({frame.name: frame.described() for frame in frames} for frames in (mine, theirs))
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            return f"'{name}' is {here.get(name, 'not there')} here and {there.get(name, 'not there')} on rank {source}"
    return ""


class Sync:
    """One such meeting of the ranks of `comm`. `number` is this rank's.

    After it `full` is the most that a rank has said, and `publisher` the rank whose tickets newcomers have (-1: none).
    """

    def __init__(
        self, comm: Any, state: State, number: int, unused: int, full: int = 0, tickets: Tickets = Tickets.NO
    ) -> None:
        self.comm, self.state = comm, state
        self.number, self.unused = number, unused
        self.full, self.tickets, self.publisher = full, tickets, -1
        self.new: set[int] = set()  # ranks that are newcomers
        self.mine = state.frames()
        self.theirs: list[Frame] = []
        self.source = 0

    def run(self) -> tuple[Members, int]:
        """Who the members are, and the first number that nobody has had. Raises MismatchError on all ranks or on none.

        The error's `ranks` are newcomers that have other tensors than all members; none where a member has.
        """
        table = _frames.pack(self.mine)
        hello = _HELLO.pack(self.state.step, self.number, self.unused, len(table), self.full, self.tickets)
        said = [_HELLO.unpack(one) for one in _gather(self.comm, hello)]
        self.new = {rank for rank, one in enumerate(said) if one[1] == NEW}
        step, self.source = max((one[0], -rank) for rank, one in enumerate(said))
        self.source = -self.source
        given = np.frombuffer(table, np.uint8).copy() if self.source == self.comm.rank else None
        self.theirs = _frames.unpack(_spread(self.comm, given, said[self.source][3], self.source).tobytes())
        received = self.receive(self.compare())
        names = tuple(frame.name for place, frame in enumerate(self.theirs) if place in received)
        self.state.adopt(step, self.theirs, received)

        self.full = max(one[4] for one in said)
        best = max(one[5] for one in said)
        self.publisher = next(rank for rank, one in enumerate(said) if one[5] == best) if best > Tickets.NO else -1
        unused = max(one[2] for one in said)
        numbers = []
        for one in said:
            numbers.append(unused if one[1] == NEW else one[1])
            unused += one[1] == NEW
        return Members(self.comm.rank, self.comm.size, tuple(numbers), step, names), unused

    def compare(self) -> list[set[int]]:
        """The places of the tensors that each rank needs."""
        refusal = _unlike(self.mine, self.theirs, self.source)
        lacking = set() if refusal else {p for p, one in enumerate(self.theirs) if one.digest != self.mine[p].digest}
        return self.tell(lacking, refusal)

    def tell(self, lacking: set[int], refusal: str = "") -> list[set[int]]:
        """Every rank's places. Raises on all ranks where one of them refuses."""
        bits = np.zeros(len(self.theirs), np.uint8)
        bits[sorted(lacking)] = 1
        reason = refusal.encode()[:_REFUSAL].ljust(_REFUSAL, b"\0")
        try:
            every = _gather(self.comm, reason + np.packbits(bits).tobytes())
        except (AbortedError, PeerLostError) as lost:
            if not refusal:
                raise
            raise MismatchError(  # who has heard the refusal first may be gone by now
                f"elastic: the tensors of this rank, {self.comm.rank} of '{self.comm.name}', are not those of rank "
                f"{self.source}: {refusal}; all ranks must make their State of the same names, dtypes and shapes"
            ) from lost
        texts = {rank: one[:_REFUSAL].rstrip(b"\0").decode(errors="replace") for rank, one in enumerate(every)}
        refused = {rank: text for rank, text in texts.items() if text}
        for rank, text in refused.items():
            error = MismatchError(
                f"elastic: the tensors of rank {rank} of '{self.comm.name}' are not those of rank {self.source}: {text}"
                f"; all ranks must make their State of the same names, dtypes and shapes"
            )
            error.ranks = tuple(refused) if refused.keys() <= self.new else ()
            raise error
        return [set(np.flatnonzero(np.unpackbits(np.frombuffer(one[_REFUSAL:], np.uint8)))) for one in every]

    def receive(self, lacking: list[set[int]]) -> dict[int, Bytes]:
        """The tensors that this rank lacks, by their places."""
        received: dict[int, Bytes] = {}
        for _ in range(_TIMES):
            if not any(lacking):
                return received
            here = lacking[self.comm.rank]
            for place in sorted(set.union(*lacking)):
                data = self.transfer(place)
                if place in here and digest(data) == self.theirs[place].digest:
                    received[place] = data
            lacking = self.tell(here - received.keys())
        refused = [(rank, sorted(places)) for rank, places in enumerate(lacking) if places]
        if not refused:
            return received
        what = "; ".join(f"rank {rank}: {', '.join(repr(self.theirs[p].name) for p in places)}" for rank, places in refused)
        raise MismatchError(
            f"elastic: what rank {self.source} of '{self.comm.name}' has sent {_TIMES} times does not have the digest that "
            f"it has said ({what}); check that rank's memory and the network"
        )

    def transfer(self, place: int) -> Bytes:
        saved = self.state.saved(place) if self.comm.rank == self.source else None
        size = len(self.state.saved(place))
        return _spread(self.comm, saved, size, self.source)
