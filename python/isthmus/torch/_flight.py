"""The flight recorder in the format that PyTorch's own analyser, `torchfrtrace`, reads."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from isthmus import _core, _ending

# The analyser knows a fixed list of libraries. Gloo is the one for CPU tensors. A group's description names isthmus.
_LIBRARY = "gloo"
_VERSION = "2.10"  # of the format
# The analyser's name of a collective, and how many blocks of the recorded size a rank puts in and gets out (0: one for each
# rank).
_KINDS: Mapping[str, tuple[str, int, int]] = {
    "all_reduce": ("all_reduce", 1, 1),
    "reduce": ("reduce", 1, 1),
    "broadcast": ("broadcast", 1, 1),
    "all_gather": ("all_gather", 1, 0),
    "all_gather_v": ("all_gather_v", 1, 1),
    "reduce_scatter": ("reduce_scatter", 0, 1),
    "reduce_scatter_v": ("reduce_scatter_v", 1, 1),
    "all_to_all": ("all_to_all", 0, 0),
    "all_to_all_v": ("all_to_all_v_single", 1, 1),
    "gather": ("gather", 1, 0),
    "gather_v": ("gather", 1, 1),
    "scatter": ("scatter", 0, 1),
    "scatter_v": ("scatter", 1, 1),
    "barrier": ("barrier", 1, 1),
}

_SIZES = {
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


def _entries(found: Mapping[str, Any], name: str, description: str, now_ns: int) -> list[dict[str, Any]]:
    """The collectives of one group. The recorder's clock is monotonic. `now_ns` is the wall clock at its `now_us`."""
    entries = []
    for e in found["entries"]:
        if e["collective"] not in _KINDS:
            continue  # sends and receives of one rank have no counterpart that the analyser could look for
        kind, blocks_in, blocks_out = _KINDS[e["collective"]]
        same_everywhere = not e["collective"].endswith("_v")  # of unequal blocks each rank records its own largest
        elements = e["bytes"] // _SIZES[e["dtype"]] if same_everywhere else 0
        created = now_ns - (found["now_us"] - e["submitted_us"]) * 1000
        ended = e["state"] == "ended" and e["result"] == "ok"
        entries.append(
            {
                "pg_id": 0,
                "process_group": (name, description),
                "collective_seq_id": e["sequence"],
                "p2p_seq_id": 0,
                "op_id": e["sequence"],
                "profiling_name": f"{_LIBRARY}:{kind}",
                "time_created_ns": created,
                "duration_ms": e["duration_us"] / 1000 if ended else None,
                "input_sizes": [[elements * (blocks_in or found["size"])]],
                "input_dtypes": [e["dtype"]],
                "output_sizes": [[elements * (blocks_out or found["size"])]],
                "output_dtypes": [e["dtype"]],
                "state": "completed" if ended else "started",
                "time_discovered_started_ns": created,
                "time_discovered_completed_ns": created + int(e["duration_us"] * 1000) if ended else None,
                "retired": ended,
                "timeout_ms": 0,
                "is_p2p": False,
                "frames": [],
            }
        )
    return entries


def record(
    dump: Callable[[dist.ProcessGroup], Mapping[str, Any]], groups: Mapping[dist.ProcessGroup, str]
) -> dict[str, Any]:
    """What `dump` says of the groups, which are given with their names, and the groups' members."""
    entries: list[dict[str, Any]] = []
    config: dict[str, dict[str, str]] = {}
    status: dict[str, dict[str, int]] = {}
    for group, name in groups.items():
        found = dump(group)
        description = f"isthmus {group.group_desc}"
        ranks = dist.get_process_group_ranks(group)
        config[name] = {"name": name, "desc": description, "ranks": str(ranks)}
        own = _entries(found, name, description, time.time_ns())
        done = [e["collective_seq_id"] for e in own if e["state"] == "completed"]
        begun = [e["collective_seq_id"] for e in own]
        status[name] = {
            "last_enqueued_collective": max(begun, default=-1),
            "last_started_collective": max(begun, default=-1),
            "last_completed_collective": max(done, default=-1),
        }
        entries += own
    entries.sort(key=lambda e: (e["time_created_ns"], e["collective_seq_id"]))
    for i, entry in enumerate(entries):
        entry["record_id"] = i
    return {
        "version": _VERSION,
        "pg_config": config,
        "pg_status": status,
        "entries": entries,
        "rank": dist.get_rank(),
    }


def write(found: Mapping[str, Any], folder: str | os.PathLike[str], prefix: str) -> Path:
    """Writes `<folder>/<prefix><global rank>`, whole or not at all."""
    return write_to(found, Path(folder) / f"{prefix}{found['rank']}")


def write_to(found: Mapping[str, Any], target: Path) -> Path:
    """Writes the file, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.write_bytes(pickle.dumps(dict(found)))
    return unfinished.replace(target)


_writing = threading.Lock()  # guards the next
_asked = 0  # how often write_when_wanted() was called since the thread began; 0: there is none


def _forked() -> None:
    """In a forked child there is no such thread, and the lock is the parent's."""
    global _writing, _asked
    _writing, _asked = threading.Lock(), 0
    _ending.threads.clear()


os.register_at_fork(after_in_child=_forked)


def write_when_wanted(record_now: Callable[[], Mapping[str, Any]]) -> None:
    """Writes the record where ISTHMUS_DUMP says whenever it is wanted, on a thread, until the last communicator is gone."""
    global _asked
    with _writing:
        _core.take_over_dumps()
        _asked += 1
        if _asked == 1:
            thread = threading.Thread(target=_write_when_wanted, args=(record_now,), name="isthmus-dump", daemon=True)
            thread.start()
            _ending.threads[:] = [thread]  # the one before has ended


def _everything(record_now: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """PyTorch's groups as the analyser reads them. Under "isthmus": what the library would write, of all communicators."""
    communicators: list[dict[str, Any]] = json.loads(_core.dump_records())
    found: Mapping[str, Any] = {"version": _VERSION, "pg_config": {}, "pg_status": {}, "entries": []}
    found = {**found, "rank": communicators[0]["rank"] if communicators else -1}
    if dist.is_initialized():
        try:
            found = record_now()
        except Exception as error:  # the program may be ending its groups just now
            print(f"isthmus: the flight record has no groups of PyTorch: {error}", file=sys.stderr)
    return {**found, "isthmus": communicators}


def _write_when_wanted(record_now: Callable[[], Mapping[str, Any]]) -> None:
    global _asked
    known = 1
    while True:
        path = _core.next_dump()
        if path is None:
            with _writing:
                if _asked == known:
                    _asked = 0
                    return
                known = _asked  # a group was made meanwhile
            continue
        try:
            found = _everything(record_now)
            if found["isthmus"]:  # else the last one ends just now: what stands in the file stays
                write_to(found, Path(path))
        except Exception as error:  # a record that cannot be written must not end the thread that writes the next
            print(f"isthmus: the flight record was not written (ISTHMUS_DUMP): {error}", file=sys.stderr)
        finally:
            _core.dump_written()
