"""The torch.distributed backend "isthmus".

>>> import isthmus.torch
>>> torch.distributed.init_process_group("isthmus")

The import only registers the backend's name. Where pip installed isthmus, torch registers the name by itself. `Options` goes
to `init_process_group(pg_options=...)`. `topology`, `explain` and `dump` show a group from the inside.
"""

from __future__ import annotations

import atexit as _atexit
import copy as _copy
import json as _json
import os as _os
from datetime import timedelta as _timedelta
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from isthmus import _ending
from isthmus.torch._build import load as _load

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store as _Store

    from isthmus import _torch
else:
    _torch = _load()

import torch
import torch.distributed as dist

from _isthmus_autoload import register
from isthmus.torch import _flight

Backend = _torch.Backend
Options = _torch.Options

__all__ = [
    "Backend",
    "Options",
    "backend_of",
    "context_stats",
    "create",
    "dump",
    "explain",
    "flight_record",
    "make_backend",
    "register",
    "topology",
    "write_flight_record",
]


def _name(group_id: str, ranks: list[int]) -> str:
    """The group's name in errors. A subgroup numbers its ranks anew, so its name lists the ranks of the job in the group."""
    if not ranks:
        return "world"
    shown = ",".join(str(r) for r in ranks[:16]) + (",..." if len(ranks) > 16 else "")
    return f"{group_id[:12]} (global ranks {shown})"


def _vendor() -> tuple[str, Any]:
    """Isthmus' name for the devices that torch works on, and torch's module for these devices. No module: torch has none."""
    if torch.cuda.is_available():
        return "hip" if torch.version.hip else "cuda", torch.cuda
    npu = getattr(torch, "npu", None)  # torch has this module once the program has imported torch_npu
    return "acl", npu if npu is not None and npu.is_available() else None


def _device(group_options: Options | None) -> str | None:
    """The device that a rank works on, where neither the settings nor the environment name one. The first that applies:

    1. torch's current device, where the program has used or chosen a device.
    2. The device of the launcher's local rank, where there is a device for each local rank.
    3. None, which is the host. None also where the settings or the environment name a device.
    """
    said = group_options.settings if group_options is not None else ""
    names = (part.split("=")[0].strip().upper().removeprefix("ISTHMUS_") for part in said.split(";"))
    if "ISTHMUS_DEVICE" in _os.environ or "DEVICE" in names:
        return None
    kind, devices = _vendor()
    if devices is None:
        return None
    local, ranks = _os.environ.get("LOCAL_RANK", ""), _os.environ.get("LOCAL_WORLD_SIZE", "")
    count = devices.device_count()
    if devices.is_initialized() and not devices._is_in_bad_fork():
        return f"{kind}:{devices.current_device()}"
    if local.isdigit() and ranks.isdigit() and int(ranks) <= count and int(local) < count:
        return f"{kind}:{local}"
    return None


def _said(setting: str, group_options: Options | None) -> str:
    """The setting's value in the group's options, else in the environment."""
    said = [_os.environ.get(f"ISTHMUS_{setting}", "")]
    for part in (group_options.settings if group_options is not None else "").split(";"):
        name, _, value = part.partition("=")
        if name.strip().upper().removeprefix("ISTHMUS_") == setting:
            said.append(value.strip())
    return said[-1]


def _timeout(given: _timedelta, group_options: Options | None) -> _timedelta:
    """The program's timeout. Where that is torch's default, the first that is given: that of the group's options, TIMEOUT in
    their settings, ISTHMUS_TIMEOUT.
    """
    default = dist.constants.default_pg_timeout
    if given != default:
        return given
    if group_options is not None and group_options._timeout != default:
        return group_options._timeout
    said = _said("TIMEOUT", group_options)
    try:
        return _timedelta(seconds=float(said)) if said else given
    except ValueError:
        return given  # the library reports the wrong value


def create(options: Any, group_options: Options | None) -> Backend:
    """Makes the backend of one group. torch calls this function. `options` is torch's _DistributedBackendOptions."""
    if group_options is not None and not isinstance(group_options, Options):
        raise TypeError(f"pg_options of an isthmus group must be isthmus.torch.Options, not {type(group_options).__name__}")
    ranks = list(options.global_ranks_in_group)
    made = make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        _timeout(options.timeout, group_options),
        _name(options.group_id, ranks),
        ranks,
        group_options,
    )
    if _said("DUMP", group_options):
        _flight.write_when_wanted(flight_record)
    return made


def make_backend(
    store: _Store,
    rank: int,
    size: int,
    timeout: _timedelta,
    name: str,
    global_ranks: list[int],
    group_options: Options | None,
) -> Backend:
    """A backend whose ranks meet in `store`, apart from torch's table of groups. `name` is for messages. Collective."""
    chosen = _device(group_options)
    if chosen:
        group_options = _copy.copy(group_options) if group_options is not None else Options()
        group_options.device = chosen
    return _torch.create(
        store=store,
        rank=rank,
        size=size,
        timeout=timeout,
        group=name,
        global_ranks=global_ranks,
        options=group_options,
    )


def backend_of(group: dist.ProcessGroup | None = None) -> Backend:
    """The backend object of a group. Without an argument: of the default group.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps the backend to check calls. The result is the backend inside the wrapper.
    Raises ValueError where there is no group, or the group's backend is not isthmus.
    """
    chosen = group if group is not None else dist.group.WORLD
    if chosen is None:
        raise ValueError("there is no process group: call torch.distributed.init_process_group('isthmus') first")
    backend = chosen._get_backend(torch.device("cpu"))
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    if not isinstance(backend, Backend):
        raise ValueError(f"the group's CPU backend is {backend.name()}, not isthmus")
    return backend


def topology(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """The hosts, islands, ranks and links of the group."""
    found: dict[str, Any] = _json.loads(backend_of(group).topology())
    return found


def explain(
    collective: str,
    *,
    nbytes: int | None = None,
    count: int | None = None,
    dtype: torch.dtype = torch.float32,
    op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    root: int = 0,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """This rank's plan for a collective of `nbytes` bytes, or of `count` elements. The key "text" is for reading.

    The size is counted as in isthmus.h. Not collective. Raises ValueError for a wrong size.
    """
    if (nbytes is None) == (count is None):
        raise ValueError("explain: give nbytes= or count=")
    if count is None:
        assert nbytes is not None
        if nbytes < 0 or nbytes % dtype.itemsize:
            raise ValueError(f"explain: nbytes={nbytes} is no multiple of {dtype.itemsize}, the size of {dtype}")
        count = nbytes // dtype.itemsize
    reduce_op = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    plan: dict[str, Any] = _json.loads(backend_of(group).explain(collective, count, dtype, reduce_op, root))
    return plan


def dump(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """The flight recorder of the group: its last operations."""
    record: dict[str, Any] = _json.loads(backend_of(group).dump())
    return record


def flight_record() -> dict[str, Any]:
    """The last collectives of all isthmus groups of this process, in the format of PyTorch's flight recorder.

    Sends and receives are left out. `gloo:` in the names stands for CPU tensors: the analyser does not know isthmus.
    """
    groups = {}
    for group, name in dist.distributed_c10d._world.pg_names.items():
        if isinstance(group, dist.ProcessGroup):
            try:
                backend_of(group)
            except (ValueError, RuntimeError):
                continue  # a group of another library
            groups[group] = name
    return _flight.record(dump, groups)


def write_flight_record(folder: str | _os.PathLike[str], prefix: str = "rank_") -> _Path:
    """Writes this process's record to `<folder>/<prefix><global rank>`, also after an error. Returns the path.

    1. Each rank writes its record into one folder.
    2. `torchfrtrace --prefix rank_ <folder>` says which rank did not join which collective, and which ranks called different
       collectives.
    """
    return _flight.write(flight_record(), folder, prefix)


def context_stats() -> dict[str, Any]:
    """How much this process holds of each: threads, descriptors, staging bytes, links, communicators."""
    stats: dict[str, Any] = _json.loads(_torch.context_stats())
    return stats


register()
# The groups end while the interpreter is alive, because futures and tensors may be Python objects. Each group waits 2 s at
# most for pending work.
_atexit.register(_torch.shutdown_all)
_atexit.register(_ending.linger)  # runs before shutdown_all(): atexit calls the last one registered first
