"""A loop over steps that goes on when ranks are lost.

>>> state = isthmus.elastic.State({"weights": weights})
>>> comm = isthmus.elastic.run(step, isthmus.init(), state, steps=1000, quorum=isthmus.elastic.Quorum(least=2))

`run` calls `step(comm, number)` for number 0 to steps - 1. Where a rank is lost in a step:

1. The other ranks agree on who is left, and make a communicator of these.
2. They make their state equal again: that of the rank that has finished most steps. Only tensors that differ travel.
3. `on_change` is called, and the step that was not finished runs again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from isthmus._comm import Comm
from isthmus._errors import AbortedError, ArgumentError, PeerLostError, TimeoutError
from isthmus.elastic._state import State
from isthmus.elastic._sync import Members, Sync

__all__ = ["Members", "Quorum", "State", "run"]

_LOST = (PeerLostError, TimeoutError, AbortedError)
_PAUSE = 0.02  # seconds between two looks at who has ended
_DONE = 1  # the flag of a rank that has finished all steps
# What an agreement says of the rank for which it has waited in vain.
_LATE = re.compile(r": rank (\d+)\b[^;]*?(, which leads the agreement|has not called it in time)")

_T = TypeVar("_T")
Step = Callable[[Comm, int], object]
OnChange = Callable[["Members | None", Members], object]
OnStep = Callable[[Members], object]


@dataclass(frozen=True)
class Quorum:
    """When the ranks that are left go on.

    - **`least`**: fewer ranks than this do not go on; `run` raises PeerLostError.
    - **`answer`**: how many seconds a rank has, once a step has failed, to stop what it does and take part in the agreement.
      A rank that is stopped, or busy for longer, is left out.
    """

    least: int = 1
    answer: float = 5.0

    def __post_init__(self) -> None:
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
) -> Comm:
    """Calls `step(comm, number)` until `steps` steps are finished. Collective. Returns the communicator of who is left.

    - **`step`**: works on the tensors of `state` in place, and leaves them alike on all ranks. Where it does not come to its
      end, the tensors become again what they were before it. It gives the communicator to nobody who keeps it: the next
      step may have another one.
    - **`on_change(old, new)`**: the members were others, or nobody's, before. The place to divide the data anew. Called
      before the first step too, with None as `old`.
    - **`on_step(members)`**: a step is finished; `members.step` says how many are. The place for checkpoints: what was told
      here is never taken back on this rank.

    `comm` belongs to `run` from here on; the caller destroys what is returned. All ranks begin with the state of rank 0.

    Raises PeerLostError where fewer than `quorum.least` ranks are left, or no more than half and the others may live;
    AbortedError where the other ranks have gone on without this one; MismatchError where the states cannot be made equal;
    and what `step` and the hooks raise, which ends the job.
    """
    return _Job(step, comm, state, steps, quorum, on_change, on_step).run()


class _Job:
    def __init__(
        self,
        step: Step,
        comm: Comm,
        state: State,
        steps: int,
        quorum: Quorum,
        on_change: OnChange | None,
        on_step: OnStep | None,
    ) -> None:
        if comm.size < quorum.least:
            raise ArgumentError(f"elastic.run: '{comm.name}' has {comm.size} ranks, and quorum.least is {quorum.least}")
        self.step, self.steps, self.quorum = step, steps, quorum
        self.comm, self.state = comm, state
        self.on_change, self.on_step = on_change, on_step
        self.members: Members | None = None
        self.number, self.unused = comm.rank, comm.size  # of Members.numbers

    def run(self) -> Comm:
        while True:
            try:
                self.meet()
                while self.state.step < self.steps:
                    self.one_step()
                if self.agree(_DONE):
                    return self.comm
            except _LOST as error:
                if self.comm.destroyed or self.comm.error is None:
                    raise  # it is not this communicator's
                self.state.restore()
                self.agree(0, error)
            self.shrink()

    def meet(self) -> None:
        """The ranks of the communicator get to know each other, and come to hold one state."""
        members, self.unused = Sync(self.comm, self.state, self.number, self.unused).run()
        self.number = members.number
        if self.on_change is not None:
            self.on_change(self.members, members)
        self.members = members

    def one_step(self) -> None:
        assert self.members is not None
        self.step(self.comm, self.state.step)
        self.state.finish()
        if self.on_step is not None:
            self.on_step(replace(self.members, step=self.state.step, received=()))

    def agree(self, done: int, why: Exception | None = None) -> bool:
        """Whether all ranks are there and have finished all steps. It comes first after a loss, and after the last step."""
        patience = self.quorum.answer if why is not None else None

        def attempt(failed: list[int]) -> bool:
            flags, out = self.comm.agree(done, failed, timeout=patience)
            return flags == _DONE and not out

        return self.insist(attempt)

    def shrink(self) -> None:
        old = self.comm
        base, _, count = old.name.rpartition("~")
        name = f"{base}~{int(count) + 1}" if base and count.isdigit() else f"{old.name}~1"
        self.comm = self.insist(lambda failed: old.shrink(failed=failed, name=name))
        old.destroy()
        if self.comm.size < self.quorum.least:
            size = self.comm.size
            self.comm.destroy()
            raise PeerLostError(
                f"elastic: {size} rank{'s are' if size > 1 else ' is'} left of '{old.name}', and quorum.least is "
                f"{self.quorum.least}; start ranks anew from the last checkpoint"
            )

    def insist(self, attempt: Callable[[list[int]], _T]) -> _T:
        """What `attempt` gives. It is given the ranks without which to go on: those that have not answered before."""
        failed: set[int] = set()
        leader = -1
        until = time.monotonic() + self.quorum.answer
        left = self.comm.size + 1
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
                found = _LATE.search(str(error))
                if found is None or left == 0:
                    raise
                # Who leads the agreement may itself wait for another rank, and then names that one.
                rank = int(found[1])
                if "leads" not in found[2] or rank == leader:
                    failed.add(rank)
                leader = rank
                left -= 1
