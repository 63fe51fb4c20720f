"""A loop over steps that goes on when ranks are lost, and takes in new ones.

>>> state = isthmus.elastic.State({"weights": weights})
>>> comm = isthmus.elastic.run(step, isthmus.init(), state, steps=1000, quorum=isthmus.elastic.Quorum(least=2))

`run` calls `step(comm, number)` for number 0 to steps - 1. Where a rank is lost in a step:

1. The other ranks agree on who is left, and make a communicator of these.
2. They make their state equal again: that of the rank that has finished most steps. Only tensors that differ travel.
3. `on_change` is called, and the step that was not finished runs again.

A rank whose own device fails is lost to the others, too; on that rank `run` raises.

A process that comes later calls `join` in place of `run`, with a ticket that `on_ticket` was given. It gets the state and
the number of the step, and is a rank like the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from isthmus import _comm
from isthmus._comm import Comm
from isthmus._errors import (
    AbortedError,
    ArgumentError,
    DeviceError,
    MismatchError,
    PeerLostError,
    ResourceError,
    SystemError,
    TimeoutError,
)
from isthmus.elastic._door import Door, OnTicket
from isthmus.elastic._state import State
from isthmus.elastic._sync import NEW, Members, Sync

__all__ = ["Members", "Quorum", "State", "join", "run"]

_LOST = (PeerLostError, TimeoutError, AbortedError)
_BROKEN = (DeviceError, ResourceError, SystemError)  # on every rank, where one's device, library or host fails
_PAUSE = 0.02  # seconds between two looks at who has ended
_DONE = 1  # the flag of a rank that has finished all steps
_LOSES_ONLY = 2  # the flag of a rank that knows of no failure but of ranks that are lost, or named

_T = TypeVar("_T")
Step = Callable[[Comm, int], object]
OnChange = Callable[["Members | None", Members], object]
OnStep = Callable[[Members], object]


@dataclass(frozen=True)
class Quorum:
    """When the ranks that are left go on, and how many they are to be. The same on all ranks, newcomers too.

    - **`least`**: fewer ranks than this do not go on; `run` raises PeerLostError.
    - **`answer`**: how many seconds a rank has, once a step has failed, to stop what it does and take part in the agreement.
      A rank that is stopped, or busy for longer, is left out.
    - **`full`**: with fewer ranks than this, newcomers are let in. None: as many as there were at first.
    - **`grace`**: how many seconds the ranks that are left wait for newcomers, until they are `full` again, before they go
      on. 0: they go on, and let newcomers in between two steps.
    - **`every`**: the ranks look before every so many steps whether newcomers have come. A look is one all_reduce of eight
      bytes. Ranks that are `full`, or of which none has `on_ticket`, do not look.
    """

    least: int = 1
    answer: float = 5.0
    full: int | None = None
    grace: float = 0.0
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1 or self.grace < 0 or (self.full is not None and self.full < self.least):
            raise ArgumentError(
                f"Quorum: every={self.every} must be 1 or more, grace={self.grace} 0 or more, and full={self.full} not "
                f"below least={self.least}"
            )
        if self.least < 1 or self.answer <= 0:
            raise ArgumentError(f"Quorum: least={self.least} must be 1 or more, and answer={self.answer} more than 0")


def run(
    step: Step,
    comm: Comm,
    state: State,
    *,
    steps: int,
    quorum: Quorum = Quorum(),  # noqa: B008 - it cannot change
    on_change: OnChange | None = None,
    on_step: OnStep | None = None,
    on_ticket: OnTicket | None = None,
) -> Comm:
    """Calls `step(comm, number)` until `steps` steps are finished. Collective. Returns the communicator of who is left.

    - **`step`**: works on the tensors of `state` in place, and leaves them alike on all ranks. Where it does not come to its
      end, the tensors become again what they were before it. It gives the communicator to nobody who keeps it: the next
      step may have another one.
    - **`on_change(old, new)`**: the members were others, or nobody's, before. The place to divide the data anew. Called
      before the first step too, with None as `old`.
    - **`on_step(members)`**: a step is finished; `members.step` says how many are. The place for checkpoints: what was told
      here is never taken back on this rank.
    - **`on_ticket(text)`**: called on one rank, at first and whenever the ticket before serves no more: it was used, its
      rank was lost, or a day is over. It passes the text on to where new processes find it; the newest is the one that
      serves. Ranks without it publish none.

    `comm` belongs to `run` from here on; the caller destroys what is returned. All ranks begin with the state of rank 0.

    Raises PeerLostError where fewer than `quorum.least` ranks are left, or no more than half and the others may live;
    AbortedError where the other ranks have gone on without this one; MismatchError where the states cannot be made equal;
    DeviceError where this rank's own device has failed, ResourceError where this rank is out of memory or descriptors (the
    other ranks go on); SystemError where a vendor's library has failed and no rank is gone, on all ranks (AbortedError on
    those that only know of an abort); and what `step` and the hooks raise, which ends the job.
    """
    if comm.size < quorum.least:
        raise ArgumentError(f"elastic.run: '{comm.name}' has {comm.size} ranks, and quorum.least is {quorum.least}")
    job = _Job(step, comm, state, steps, quorum, on_change, on_step, on_ticket)
    job.number, job.unused, job.full = comm.rank, comm.size, quorum.full or comm.size
    return job.run()


def join(
    step: Step,
    ticket: str,
    state: State,
    *,
    steps: int,
    quorum: Quorum = Quorum(),  # noqa: B008 - it cannot change
    on_change: OnChange | None = None,
    on_step: OnStep | None = None,
    on_ticket: OnTicket | None = None,
    island: str | None = None,
    bridge: str | None = None,
    timeout: float | None = None,
    settings: Mapping[str, object] | str | None = None,
) -> Comm:
    """What a process calls that comes while others are in `run`. It waits until they let it in, and is then one of them.

    - **`ticket`**: the text that `on_ticket` was given.
    - **`state`**: of tensors with the same names, dtypes and shapes. They become what the others hold.
    - **`timeout`**: how long it waits to be let in, and the deadline of its operations. It waits while the job is full.
    - **`island`, `bridge`, `settings`**: as in isthmus.join. The other arguments are those of `run`, and the same as there.

    Make everything that takes time before the call: from where they let it in, the others wait for this process. Raises what
    isthmus.join raises (ArgumentError: the ticket was used, come with a newer one) and what `run` raises.
    """
    comm = _comm.join(ticket, island=island, bridge=bridge, timeout=timeout, settings=settings)
    return _Job(step, comm, state, steps, quorum, on_change, on_step, on_ticket).run()


class _Job:
    """One rank's part. As it is made it is a newcomer's."""

    def __init__(
        self,
        step: Step,
        comm: Comm,
        state: State,
        steps: int,
        quorum: Quorum,
        on_change: OnChange | None,
        on_step: OnStep | None,
        on_ticket: OnTicket | None,
    ) -> None:
        self.step, self.steps, self.quorum = step, steps, quorum
        self.comm, self.state = comm, state
        self.on_change, self.on_step = on_change, on_step
        self.members: Members | None = None
        self.number, self.unused = NEW, 0  # of Members.numbers
        self.full = quorum.full or 0
        self.door = Door(on_ticket)
        self.outside: tuple[int, ...] = ()  # ranks without which to go on, whether they answer or not
        self.lost_from = ""  # the communicator that has lost ranks since the last step

    def run(self) -> Comm:
        while True:
            try:
                self.meet()
                while self.state.step < self.steps:
                    if self.state.step % self.quorum.every == 0 and self.take_in(0.0):
                        self.meet()
                    else:
                        self.one_step()
                flags, out = self.agree(_DONE | (_LOSES_ONLY if self.loses_only() else 0))
                if flags & _DONE and not out:
                    return self.comm
                failure = None
            except (*_LOST, *_BROKEN) as error:
                if self.comm.destroyed or self.comm.error is None:
                    raise  # it is not this communicator's
                failure = error
                lost = self.loses_only(error)
                self.state.restore()
                flags, out = self.agree(_LOSES_ONLY if lost else 0, error)
            if not out and (self.outside or not flags & _LOSES_ONLY):  # the same ranks would do the same again
                raise self.comm.error or AbortedError(
                    f"elastic: a vendor's library has failed on a rank of '{self.comm.name}', and no rank is gone"
                ) from failure
            failure = None  # it holds what the step has held
            self.shrink()

    def loses_only(self, error: Exception | None = None) -> bool:
        """Whether this rank knows of no failure but of ranks that are lost, or that an error names: the others can go on
        without them. False: a vendor's library has failed, and perhaps another rank is gone; where none is, all ranks raise.

        Raises what has failed where it is of this rank's device, or nobody knows whose. What the communicator says counts.
        What the step has got may be of a communicator of its own, whose ranks have other numbers.
        """
        failure = self.comm.error
        if not isinstance(failure, _BROKEN):
            return True
        if isinstance(failure, (ResourceError, SystemError)) and not failure.ranks:
            return False
        if not failure.ranks or self.comm.rank in failure.ranks:
            raise failure from error
        self.outside = tuple({*self.outside, *failure.ranks})
        return True

    def meet(self) -> None:
        """The ranks get to know each other, and come to hold one state. After a loss they wait for newcomers."""
        members = self.sync()
        if self.lost_from and self.quorum.grace > 0 and self.take_in(time.monotonic() + self.quorum.grace):
            members = self.sync()
        if self.comm.size < self.quorum.least:
            self.give_up()
        self.lost_from = ""
        if self.on_change is not None:
            self.on_change(self.members, members)
        self.members = members

    def sync(self) -> Members:
        sync = Sync(self.comm, self.state, self.number, self.unused, self.full, self.door.can)
        try:
            members, self.unused = sync.run()
        except MismatchError as error:
            if not error.ranks or self.comm.rank in error.ranks:
                raise
            self.outside = error.ranks  # newcomers with other tensors: the others go on as after a loss
            self.comm.revoke(str(error))
            raise AbortedError(str(error)) from error
        self.number, self.full, self.door.publisher = members.number, sync.full, sync.publisher
        self.door.publish(self.comm)
        return members

    def take_in(self, until: float) -> bool:
        """Lets in newcomers that have come, or come until then. Whether there are any, and so another communicator."""
        while self.comm.size < self.full and self.door.publisher >= 0:
            count = self.door.ask(self.comm, self.full - self.comm.size, until)
            if count == 0:
                return False
            grown = self.door.let_in(self.comm, count, self.next_name())
            if grown is not None:
                old, self.comm = self.comm, grown
                old.destroy()
                return True
        return False

    def one_step(self) -> None:
        assert self.members is not None
        self.step(self.comm, self.state.step)
        self.state.finish()
        if self.on_step is not None:
            self.on_step(replace(self.members, step=self.state.step, received=()))

    def agree(self, flags: int, why: Exception | None = None) -> tuple[int, list[int]]:
        """The flags that all ranks have that are there, and who is not there. The same on all ranks.

        It comes first after a loss, and after the last step.
        """
        # Those in whose last step a rank has stopped come at the deadline of their operations, and a little later.
        patience = self.quorum.answer if why is not None else self.comm.timeout + 2 + self.quorum.answer
        return self.insist(lambda failed: self.comm.agree(flags, failed, timeout=patience))

    def next_name(self) -> str:
        base, _, count = self.comm.name.rpartition("~")
        return f"{base}~{int(count) + 1}" if base and count.isdigit() else f"{self.comm.name}~1"

    def shrink(self) -> None:
        old, name = self.comm, self.next_name()
        self.comm = self.insist(lambda failed: old.shrink(failed=failed, name=name))
        self.lost_from = self.lost_from or old.name
        self.outside = ()
        old.destroy()

    def give_up(self) -> None:
        size, before = self.comm.size, self.lost_from or self.comm.name
        self.comm.destroy()
        raise PeerLostError(
            f"elastic: {size} rank{'s are' if size > 1 else ' is'} left of '{before}', and quorum.least is "
            f"{self.quorum.least}; start ranks anew from the last checkpoint"
        )

    def insist(self, attempt: Callable[[list[int]], _T]) -> _T:
        """What `attempt` gives. It is given the ranks without which to go on: those that have not answered before."""
        failed = set(self.outside)
        until = time.monotonic() + self.quorum.answer
        attempts = self.comm.size + 1
        while True:
            try:
                return attempt(sorted(failed))
            except PeerLostError:
                # Too few are left, as far as is known. That those out of reach have ended may be known a moment later.
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
            except TimeoutError as error:
                until = time.monotonic() + self.quorum.answer
                attempts -= 1
                if attempts == 0:
                    raise
                failed.update(error.ranks)  # none: who leads knows them, and names them when it calls again
