"""Communicators: `init`, `from_mpi`, `Comm`, and groups of operations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _core, _ending
from ._errors import ArgumentError, ConfigError, PeerLostError

_KEEP, _ABORT, _AGREE = range(3)  # isthmus_shrink_mode

__all__ = ["Comm", "Explanation", "context_stats", "from_mpi", "group", "init", "join", "settings", "unique_id"]


class Explanation:
    """What a collective would do on this rank. `str()` gives the plan as text, `data` the same as a dict."""

    def __init__(self, text: str) -> None:
        self.data: dict[str, Any] = json.loads(text)

    def __str__(self) -> str:
        return str(self.data.get("text", json.dumps(self.data, indent=2)))

    def __repr__(self) -> str:
        return f"<isthmus.Explanation of {self.data.get('collective', 'a collective')}>"


class Comm(_core.Comm):
    """One rank's view of one communicator.

    Every rank calls the collectives in the same order. An array must be contiguous.

    - **Arrays**: NumPy arrays, torch tensors, and any object with the buffer protocol or DLPack. On a rank with a device
      also arrays in the device's memory, by `__cuda_array_interface__` or DLPack.
    - **`stream`**: the handle of the device's stream on which the operation stands, as an integer.
    - **`async_op`**: a call blocks. With `async_op=True` the call returns a `Work` at once.
    - **`timeout`**: the operation's deadline in seconds. None takes the communicator's.
    - **`out`**: the array that receives the result; the call returns that array. Without `out`, all_reduce, reduce and
      broadcast write into `x`, and the other collectives into a new array.
    - **`keep_input`** (all_reduce, reduce, broadcast, all_to_all): where the operation fails, the array that it writes, `x`
      or `out`, holds what it held before. So the call can be made again on the communicator that comes of `shrink`. It
      costs a copy of the array before the operation. No operation that is still in flight may write to the array. Not
      for a device's memory, and not in a group.
    - **`commit`** (the same four): the operation is done on all ranks, or on none that lives. It keeps the input as above,
      and behind it the ranks agree whether it has ended well on all. Where it has not, or a rank is lost, the array holds
      what it held before on all ranks, all of them raise, and the communicator has failed; `error.ranks` are those that are
      lost or did not come. All ranks give it, or none. Not with `async_op`: the call blocks. Where a rank hears no answer,
      the error says that what the others have is not known.
    - **Threads**: any thread may call. The order of the calls must be the same on all ranks.

    As a context manager the communicator is destroyed at the end of the block. Where an exception ends the block:

    1. The other ranks hear at once which rank raised which exception. Their operations end in PeerLostError.
    2. The communicator is destroyed with this object, or at the end of the process.
    """

    @property
    def name(self) -> str:
        """The communicator's name: given to init, split or shrink, or made there from the parent's name."""
        return self._name

    _name = "world"

    def split(self, color: int, key: int = 0, name: str | None = None) -> Comm | None:
        """Collective. Ranks with the same color >= 0 form a communicator, ordered by (key, rank).

        Returns this rank's new communicator, or None for a negative color. Where one rank cannot make the new communicator,
        the call fails at once on all ranks of that color, and the error names the rank. This communicator and the other
        colors go on. Without a name it is "world/split" of "world", and "world/split 2" where it is the second split of
        that communicator.
        """
        handle = self._split(color, key, name)
        if handle is None:
            return None
        child = Comm(handle)
        child._name = name or child.topology()["name"]
        return child

    def agree(
        self,
        flags: int = 2**64 - 1,
        failed: Sequence[int] = (),
        *,
        allow_minority: bool = False,
        timeout: float | None = None,
    ) -> tuple[int, list[int]]:
        """Agrees with the ranks that live, also where this communicator has failed or was aborted. Collective over them.

        Returns the AND of the ranks' `flags` (64 bits) and the ranks that are out: those that are gone, and those that any
        rank names in `failed`. All ranks get the same answer, whichever rank is lost meanwhile. The flags of a rank that is
        out do not count.

        A rank that was named and lives gets AbortedError, and takes part in no more agreements. TimeoutError: a rank has not
        called; `error.ranks` says which, and it may be named in the next call. PeerLostError: the ranks that are left are
        no more than half, and a missing one may live. `allow_minority=True`, on all ranks, goes on in spite of that. A call
        that fails does not count, as far as no other rank has heard it: the next call goes on with the same agreement.
        """
        return self._agree(flags, list(failed), allow_minority, timeout)

    def shrink(
        self,
        exclude: Sequence[int] | None = None,
        *,
        abort: bool = False,
        name: str | None = None,
        failed: Sequence[int] = (),
        dense: bool = True,
    ) -> Comm:
        """Makes a communicator of the ranks that are left. Collective over them.

        - `shrink()`: the ranks agree on who is left (`agree`): all but those that are gone and those that any rank names in
          `failed`. This communicator is aborted first. Where a further rank is lost meanwhile, they begin again by
          themselves, until all that are left have the new communicator.
        - `shrink(exclude)`: all ranks but those in `exclude`, the same list on all of them. The excluded ranks need not
          live, and do not call. With abort=True this communicator is aborted first; without it this communicator goes on.
          Where a further rank is lost during the call, all remaining ranks get an error, and may call again with a longer
          list.

        - `dense`: the ranks that are left have the numbers 0, 1, 2 and so on. With dense=False each keeps its number, its
          slot: `size` stays the number of slots, and the slots of those that are out are holes. `members` are the others.

        TimeoutError: a rank does not answer. `error.ranks` says which; `shrink(failed=error.ranks)` goes on without it.
        MismatchError: ranks give unlike `dense`.

        The new communicator has the timeout that this one has now. This communicator must still be destroyed.
        """
        if exclude is not None and failed:
            raise ArgumentError("shrink: give `exclude`, or `failed` and the ranks agree, not both")
        mode = _AGREE if exclude is None else _ABORT if abort else _KEEP
        child = Comm(self._shrink(list(failed if exclude is None else exclude), mode, dense, name))
        child._name = name or f"{self.name}/shrink"
        return child

    def ticket(self, *, timeout: float | None = None) -> str:
        """A ticket, by which other processes come into this communicator, or into one that is made from it (isthmus.join).

        Any rank makes one, and needs no other rank for it. The text is printable and short; pass it by any means. Who has
        the text may come. Where ISTHMUS_JOB_KEY is set, the process has to have that key too.

        A ticket is for one grow. It expires after `timeout` seconds (600), and when the process ends that made it. A process
        has at most 256 tickets that are neither used nor expired.
        """
        return self._ticket(timeout)

    def joiners(self, ticket: str) -> int:
        """How many processes have come with the ticket and wait. 0 on ranks that did not make it. Does not wait."""
        return self._joiners(ticket)

    def grow(self, ticket: str, n: int = 1, *, slots: Sequence[int] | None = None, name: str | None = None) -> Comm:
        """Makes a communicator of these ranks and `n` processes that come with the ticket. Collective, with equal arguments.

        - The newcomers stand behind these ranks, or have the ranks in `slots`: then these ranks have the other numbers, in
          their order. Where this communicator has holes, these ranks keep their slots, and newcomers have the lowest holes,
          then slots behind all others; `slots` are holes or such slots.
        - All ranks and newcomers have the new communicator, or none has it. Then the error says why, and this communicator
          is as it was.
        - The call waits for processes that have not come, up to two thirds of the communicator's timeout. A loop that is not
          to wait asks `joiners` first.
        - Operations of this communicator go on beside it, and the call does not wait for them. This communicator must still
          be destroyed.

        A communicator that has failed or has lost a rank is shrunk first: see `replace`.
        """
        child = Comm(self._grow(ticket, n, None if slots is None else list(slots), name))
        child._name = name or f"{self.name}/grow"
        return child

    def reconfigure(
        self,
        exclude: Sequence[int] = (),
        *,
        members: Sequence[int] | None = None,
        ticket: str | None = None,
        n: int | None = None,
        slots: Sequence[int] | None = None,
        dense: bool = True,
    ) -> None:
        """Goes over to a new epoch: this communicator has other ranks from now on. Collective over the ranks that stay.

        - Out are the ranks that are gone, and those that any rank names in `exclude`, or leaves out of `members`. They may
          live, and do not call.
        - With a `ticket` (all ranks or none) `n` processes (1) come in, as by `grow`.
        - The ranks that stay keep their order, and are numbered without gaps: `rank` and `size` are other numbers then. With
          dense=False, on all ranks, each keeps its slot, and slots that nobody has are holes (`members`). Newcomers then
          have `slots`, or the lowest holes and then slots behind all others. The name and the timeout stay.
        - What did not change goes on: connections, memory that devices have registered, and the library's communicator of
          each island that has the same processes and in which no operation stands.

        The call waits for operations that are in flight. Meanwhile other threads' calls on this communicator fail, but for
        abort, revoke and destroy, which end this one with AbortedError. It may be called after a failure. Where it raises,
        this communicator is as it was, and aborted if ranks were out or no ticket was given. Where the newcomers alone could
        not come in, it has gone over to the ranks that were left, on all of them, and the error says so.
        """
        if members is not None:
            if exclude:
                raise ArgumentError("reconfigure: give `exclude` or `members`, not both")
            there = set(self.members)
            if strange := sorted(set(members) - there):
                raise ArgumentError(f"reconfigure: there is no rank {strange[0]} among {self.size}: {sorted(there)}")
            exclude = sorted(there - set(members))
        count = (0 if ticket is None else 1) if n is None else n
        self._reconfigure(list(exclude), ticket, count, None if slots is None else list(slots), dense)

    def replace(self, ranks: Sequence[int], ticket: str, *, name: str | None = None) -> Comm:
        """Makes a communicator in which newcomers have the places of `ranks`. Collective over the other ranks.

        The ranks in `ranks` are lost, or are left out. It is shrink() without them and then reconfigure() with as many
        newcomers: this communicator is aborted, and each rank that is left keeps its number. One of those that are left must
        have made the ticket; a ticket that was made before the loss serves. The same `ranks` on all. Other holes stay.

        PeerLostError: other ranks are lost too, and the error names all. Call again with those, and with the ticket if it is
        unused.
        """
        wanted = sorted(set(ranks))
        members = set(self.members)
        rest = self.shrink(failed=wanted, name=name or self.name, dense=False)
        try:
            out = sorted(members - set(rest.members))
            if out != wanted:
                raise PeerLostError(f"replace: the ranks {out} are lost, not {wanted}; call again with all that are lost")
            rest.reconfigure(ticket=ticket, n=len(wanted), slots=wanted, dense=False)
            if set(rest.members) != members:
                raise PeerLostError("replace: a further rank was lost meanwhile; agree() says which, and call again")
        except BaseException:
            rest.destroy()
            raise
        return rest

    def explain(
        self,
        collective: str,
        *,
        nbytes: int | None = None,
        count: int | None = None,
        dtype: object = "float32",
        op: str = "sum",
        root: int = 0,
    ) -> Explanation:
        """The path and the plan of this rank for a collective of `nbytes` bytes, or of `count` elements.

        The size is counted as in isthmus.h. The explanation has two times as well: the time that the ranks' profiles predict
        (`isthmus tune`), and the time of the last such call on this rank.

        For "send" and "recv" the explanation says which way such a message with tag 0 takes. `root` is then the peer, and -1
        is any sender of a receive. Not collective. Raises ArgumentError where the call makes no sense.
        """
        if (nbytes is None) == (count is None):
            raise ArgumentError("explain: give nbytes= or count=")
        if count is None:
            assert nbytes is not None
            size = _core.dtype_size(dtype)
            if nbytes < 0 or nbytes % size:
                raise ArgumentError(f"explain: nbytes={nbytes} is no multiple of {size}, the size of {dtype}")
            count = nbytes // size
        if count < 0:
            raise ArgumentError(f"explain: count={count} must be 0 or more")
        return Explanation(self._explain(collective, count, dtype, op, root))

    def topology(self) -> dict[str, Any]:
        """The hosts, islands, ranks and links, as found at init."""
        found: dict[str, Any] = json.loads(self._topology())
        return found

    def dump(self) -> dict[str, Any]:
        """The flight recorder: the last operations and how they ended; with `ISTHMUS_TRACE` also their steps."""
        found: dict[str, Any] = json.loads(self._dump())
        return found

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # sys.exit(0) is how a program ends well.
        ends_well = isinstance(error, SystemExit) and (
            error.code is None or (isinstance(error.code, int) and error.code == 0)
        )
        if error is None or ends_well or self.destroyed:
            self.destroy()
        else:
            self._raised(_ending.one_line(type(error), error))

    def __repr__(self) -> str:
        state = " destroyed" if self.destroyed else ""
        return f"<isthmus.Comm '{self.name}' rank {self.rank} of {self.size}{state}>"


def _settings_text(settings: Mapping[str, object] | str | None) -> str | None:
    if settings is None or isinstance(settings, str):
        return settings
    for name, value in settings.items():
        if ";" in f"{name}{value}" or "=" in name:
            raise ConfigError(f"settings: {name}={value}: names and values must not hold ';', nor names '='")
    return ";".join(f"{name}={value}" for name, value in settings.items())


def _under_mpi_without_address() -> bool:
    launched = "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ or "PMI_RANK" in os.environ
    placed = any(name in os.environ for name in ("ISTHMUS_ADDRESS", "ISTHMUS_RANK", "MASTER_ADDR", "SLURM_STEP_NODELIST"))
    return launched and not placed


def init(
    rank: int | None = None,
    world_size: int | None = None,
    address: str | None = None,
    *,
    unique_id: bytes | None = None,
    island: str | None = None,
    bridge: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
    settings: Mapping[str, object] | str | None = None,
) -> Comm:
    """Joins a communicator. Collective: the call returns when all `world_size` ranks have called init.

    - **`rank`, `world_size`**: both or neither. Without them torchrun, mpirun or srun gives them, or ISTHMUS_RANK and
      ISTHMUS_WORLD_SIZE.
    - **`address`**: "host:port" of rank 0, which listens there. Without `address` the launcher or ISTHMUS_ADDRESS gives the
      address. Under mpirun without an address the ranks meet through mpi4py, where that is installed.
    - **`unique_id`**: in place of an address, the bytes that rank 0's process got from isthmus.unique_id().
    - **`island`**: the label of this rank's island.
    - **`bridge`**: "auto", "shm", "tcp" or "ucx".
    - **`timeout`**: the deadline of init and of each operation, in seconds.
    - **`settings`**: further settings (`isthmus doctor --settings`), as a mapping or as "NAME=value;NAME=value".

    Raises ArgumentError and ConfigError for wrong arguments and settings, MismatchError where the ranks disagree, and
    TimeoutError where a rank does not come.
    """
    if (rank is None) != (world_size is None):
        raise ArgumentError("init: rank= and world_size= go together; give both, or neither under torchrun, mpirun or srun")
    if rank is not None and world_size is not None:
        if world_size < 1:
            raise ArgumentError(f"init: world_size={world_size} must be 1 or more")
        if not 0 <= rank < world_size:
            raise ArgumentError(f"init: rank={rank} is not in 0 to {world_size - 1}, the ranks of world_size={world_size}")
    if unique_id is not None and address is not None:
        raise ArgumentError("init: give unique_id= or address=, not both")
    options: dict[str, Any] = {"island": island, "bridge": bridge, "timeout": timeout, "name": name}
    if rank is None and address is None and unique_id is None and _under_mpi_without_address():
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ConfigError(
                "init: started by mpirun without an address for the rendezvous; install mpi4py, or pass one to all ranks "
                "with mpirun -x ISTHMUS_ADDRESS=<host of rank 0>:<port>"
            ) from error
        return from_mpi(MPI.COMM_WORLD, settings=settings, **options)
    comm = Comm(
        rank=-1 if rank is None else rank,
        world_size=-1 if world_size is None else world_size,
        address=address,
        unique_id=unique_id,
        settings=_settings_text(settings),
        **options,
    )
    comm._name = name or os.environ.get("ISTHMUS_NAME", "world")
    return comm


def join(
    ticket: str,
    *,
    slot: int | None = None,
    island: str | None = None,
    bridge: str | None = None,
    timeout: float | None = None,
    settings: Mapping[str, object] | str | None = None,
) -> Comm:
    """Joins a communicator that there is already: comes with a ticket (`Comm.ticket`), and waits until its ranks call grow.

    - **`slot`**: the rank that this process wants to be. None takes any that is free. Refused where a rank lives there, or
      where another process has come for it.
    - **`timeout`**: the deadline of the wait and of each operation, in seconds. Once the ranks have let this process in,
      their deadline counts.
    - **`island`, `bridge`, `settings`**: as in init. The ranks have chosen the name.

    Raises AuthError where this process cannot prove the job key, ArgumentError where the ticket is used or has expired,
    MismatchError for another version or other settings, TimeoutError where no rank lets it in, and PeerLostError where the
    process has ended that made the ticket.
    """
    joined = Comm(_core.join(ticket, -1 if slot is None else slot, island, bridge, timeout, _settings_text(settings)))
    joined._name = joined.topology()["name"]
    return joined


def from_mpi(
    comm: Any = None,
    *,
    island: str | None = None,
    bridge: str | None = None,
    timeout: float | None = None,
    name: str | None = None,
    settings: Mapping[str, object] | str | None = None,
) -> Comm:
    """Makes a communicator of the ranks of an mpi4py communicator (MPI.COMM_WORLD by default). Collective.

    MPI carries the rendezvous only. The other arguments are those of init.
    """
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD

    def exchange(mine: bytes) -> bytes:
        gathered = bytearray(len(mine) * comm.Get_size())
        comm.Allgather(bytearray(mine), gathered)
        return bytes(gathered)

    made = Comm(
        rank=comm.Get_rank(),
        world_size=comm.Get_size(),
        island=island,
        bridge=bridge,
        timeout=timeout,
        name=name,
        settings=_settings_text(settings),
        exchange=exchange,
    )
    made._name = name or "world"
    return made


def unique_id() -> bytes:
    """128 bytes with this process's address and a fresh key.

    1. The process of rank 0 calls unique_id().
    2. The program gives the bytes to all ranks.
    3. Every rank calls init(rank, world_size, unique_id=bytes).
    """
    return _core.unique_id()


def settings() -> list[dict[str, Any]]:
    """Every setting: name, kind, default, range, meaning and value."""
    rows: list[dict[str, Any]] = json.loads(_core.settings())
    return rows


def context_stats() -> dict[str, Any]:
    """How much this process holds of each: threads, descriptors, staging bytes, links, communicators."""
    stats: dict[str, Any] = json.loads(_core.context_stats())
    return stats


class group:  # noqa: N801 - used as a statement: `with isthmus.group():`
    """Submits the operations of a `with` block together, at the block's end.

    Sends and receives in the block may come in any order. The block ends when all its operations are done. With
    `async_op=True` the block ends at once, and `.work` is one `Work` for all its operations. Where an exception ends the
    block, no operation is submitted. A group is the calling thread's: other threads' calls are not part of the group.
    """

    def __init__(self, *, async_op: bool = False) -> None:
        self._async_op = async_op
        self.work: _core.Work | None = None

    def __enter__(self) -> group:
        _core.group_begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            _core.group_cancel()
        else:
            self.work = _core.group_end(self._async_op)
