"""The torch.distributed backend "isthmus".

>>> import isthmus.torch
>>> torch.distributed.init_process_group("isthmus")

The import only registers the name; where isthmus was installed by pip, torch does that by itself. `Options` goes to
`init_process_group(pg_options=...)`; `topology`, `explain` and `dump` show what a group looks like from the inside.
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
    "register",
    "topology",
    "write_flight_record",
]


def _name(group_id: str, ranks: list[int]) -> str:
    """How errors call the group. Its ranks are numbered anew, so a subgroup says which ranks of the job it holds."""
    if not ranks:
        return "world"
    shown = ",".join(str(r) for r in ranks[:16]) + (",..." if len(ranks) > 16 else "")
    return f"{group_id[:12]} (global ranks {shown})"


def _vendor() -> tuple[str, Any]:
    """What Isthmus calls the devices that torch works on, and torch's module for them; None where it has none."""
    if torch.cuda.is_available():
        return "hip" if torch.version.hip else "cuda", torch.cuda
    npu = getattr(torch, "npu", None)  # there once the program has imported torch_npu
    return "acl", npu if npu is not None and npu.is_available() else None


def _device(group_options: Options | None) -> str | None:
    """The device that a rank works on where nothing was said: torch's current one if one was chosen, or the launcher's.

    A program that has not touched its devices so far, and was not started with one for each local rank, works on the host.
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
    """The setting, of the group's options or the environment."""
    said = [_os.environ.get(f"ISTHMUS_{setting}", "")]
    for part in (group_options.settings if group_options is not None else "").split(";"):
        name, _, value = part.partition("=")
        if name.strip().upper().removeprefix("ISTHMUS_") == setting:
            said.append(value.strip())
    return said[-1]


def _timeout(given: _timedelta, group_options: Options | None) -> _timedelta:
    """The program's; where that is torch's default ISTHMUS_TIMEOUT, of the group's options or the environment."""
    if given != dist.constants.default_pg_timeout:
        return given
    said = _said("TIMEOUT", group_options)
    try:
        return _timedelta(seconds=float(said)) if said else given
    except ValueError:
        return given  # the library says what is wrong with it


def create(options: Any, group_options: Options | None) -> Backend:
    """What torch calls to make the backend of one group; `options` is its _DistributedBackendOptions."""
    if group_options is not None and not isinstance(group_options, Options):
        raise TypeError(f"pg_options of an isthmus group must be isthmus.torch.Options, not {type(group_options).__name__}")
    ranks = list(options.global_ranks_in_group)
    chosen = _device(group_options)
    if chosen:
        group_options = _copy.copy(group_options) if group_options is not None else Options()
        group_options.device = chosen
    backend = _torch.create(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=_timeout(options.timeout, group_options),
        group=_name(options.group_id, ranks),
        global_ranks=ranks,
        options=group_options,
    )
    if _said("DUMP", group_options):
        _flight.write_when_wanted(flight_record)
    return backend


def backend_of(group: dist.ProcessGroup | None = None) -> Backend:
    """The backend object of a group; of the default group without an argument. Also under the wrapper of
    TORCH_DISTRIBUTED_DEBUG=DETAIL, by which torch checks calls.
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
    """Hosts, islands, ranks and links of the group."""
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
    """This rank's plan for `nbytes` bytes or `count` elements, counted as in isthmus.h; the key "text" is for reading."""
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

    Sends and receives are left out. `gloo:` in the names stands for CPU tensors: the analyser knows no name of ours.
    """
    groups = {}
    for group, name in dist.distributed_c10d._world.pg_names.items():
        if isinstance(group, dist.ProcessGroup):
            try:
                backend_of(group)
            except (ValueError, RuntimeError):
                continue  # another library's
            groups[group] = name
    return _flight.record(dump, groups)


def write_flight_record(folder: str | _os.PathLike[str], prefix: str = "rank_") -> _Path:
    """Writes this process's record to `<folder>/<prefix><global rank>`, also after an error; returns the path.

    With the files of all ranks in one folder, `torchfrtrace --prefix rank_ <folder>` says which rank did not join which
    collective, and which ranks called different things.
    """
    return _flight.write(flight_record(), folder, prefix)


def context_stats() -> dict[str, Any]:
    """Threads, descriptors, staging bytes, links and communicators of this process."""
    stats: dict[str, Any] = _json.loads(_torch.context_stats())
    return stats


register()
# While the interpreter is alive: futures and tensors may be Python objects. Each group waits 2 s at most for pending work.
_atexit.register(_torch.shutdown_all)
_atexit.register(_ending.linger)  # before that
