"""How newcomers come into a job: one rank publishes tickets, and all ask it whether somebody has come."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np

from isthmus._comm import Comm
from isthmus._errors import Error
from isthmus.elastic._sync import Tickets

OnTicket = Callable[[str], object]

TICKET_SECONDS = 86400.0  # for so long a ticket serves, unless it is used
_PAUSE = 0.02  # seconds between two looks, where the ranks wait
_TEXT = 256  # bytes of a ticket, with room
_OPEN = 8  # tickets of one rank that are looked at: the newest


class Door:
    """One rank's part of it. `publisher` is the rank whose tickets newcomers have, the same on all ranks; -1: nobody's."""

    def __init__(self, on_ticket: OnTicket | None) -> None:
        self.on_ticket = on_ticket
        self.publisher = -1
        # Of this rank, the newest last. Where letting in has failed it is not known whether the ticket is used, and
        # processes may wait with it.
        self.tickets: list[str] = []
        self.until = 0.0  # the newest one serves

    @property
    def can(self) -> Tickets:
        if self.on_ticket is None:
            return Tickets.NO
        return Tickets.HAS if self.serves() else Tickets.MAKES

    def serves(self) -> bool:
        return bool(self.tickets) and time.monotonic() < self.until

    def publish(self, comm: Comm) -> None:
        """Where it falls to this rank, and no ticket of its serves."""
        if comm.rank != self.publisher or self.on_ticket is None or self.serves():
            return
        ticket = comm.ticket(timeout=TICKET_SECONDS)
        self.until = time.monotonic() + TICKET_SECONDS
        self.tickets = [*self.tickets[1 - _OPEN :], ticket]
        self.on_ticket(ticket)

    def ask(self, comm: Comm, most: int, until: float = 0.0) -> int:
        """How many to let in, at most `most`: as soon as these have come, and at `until` those that have. Collective."""
        while True:
            word = np.zeros(2, np.int32)
            if comm.rank == self.publisher:
                self.publish(comm)
                waiting = max((comm.joiners(ticket) for ticket in self.tickets), default=0)
                word[:] = min(waiting, most), time.monotonic() >= until
            comm.all_reduce(word, "max")
            come, over = int(word[0]), bool(word[1])
            if over or come == most:
                return come
            time.sleep(_PAUSE)

    def let_in(self, comm: Comm, count: int, name: str) -> Comm | None:
        """The communicator with so many newcomers, or None: they have not come in, and `comm` is as it was. Collective."""
        text = np.zeros(_TEXT, np.uint8)
        here = comm.rank == self.publisher
        if here:
            most = max(self.tickets, key=comm.joiners)
            if comm.joiners(most) >= count:  # else one has gone since it was counted, and all would wait for it
                text[: len(most)] = np.frombuffer(most.encode(), np.uint8)
        comm.broadcast(text, self.publisher)
        ticket_text = text.tobytes().rstrip(b"\0").decode()
        if not ticket_text:
            return None
        try:
            grown = comm.grow(ticket_text, count, name=name)
        except Error as error:
            if comm.error is not None:
                raise
            if here:
                warnings.warn(f"elastic: a newcomer was not let in, and the job goes on: {error}", RuntimeWarning, 2)
                self.until = 0.0  # the ticket may be used
            return None
        if here:
            self.tickets.remove(ticket_text)
            self.until = 0.0
        return grown
