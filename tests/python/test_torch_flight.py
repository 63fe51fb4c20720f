"""The flight recorder, read by PyTorch's own analyser."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus.torch
import torch_ranks
from events import until
from patience import patient
from torch_ranks import hear, tell

TOGETHER = "torch"  # whose ranks are forked by one server

WORLD = 3


def analysed(folder: Path) -> tuple[str, list[Any]]:
    """What torchfrtrace says of the records in the folder, and the collectives that it found."""
    found = folder / "found.pickle"
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    command = [*analyser, str(folder), "-p", "rank_", "-o", str(found)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patient(120))
    assert done.returncode == 0, done.stdout
    with open(found, "rb") as file:
        _, database = pickle.load(file)
    return done.stdout, list(database.collectives)


def test_the_analyser_finds_nothing_wrong_with_a_job_that_works(tmp_path: Path) -> None:
    def body(folder: str) -> int:
        rank = dist.get_rank()
        part = dist.new_group([0, 2])
        x, wide = torch.ones(30), torch.ones(30 * WORLD)
        for _ in range(3):
            dist.all_reduce(x)
            dist.all_gather_into_tensor(wide, x)
            dist.reduce_scatter_tensor(x, wide)
            dist.all_to_all_single(x.clone(), x)
            sent = [rank + r + 1 for r in range(WORLD)]
            dist.all_to_all_single(torch.empty(sum(sent)), torch.ones(sum(sent)), sent, sent)
            dist.broadcast(x, 1)
            dist.reduce(x, 2, dist.ReduceOp.MAX)
            dist.gather(x, [torch.empty(30) for _ in range(WORLD)] if rank == 0 else None, 0)
            dist.scatter(x, [torch.ones(30)] * WORLD if rank == 1 else None, 1)
            dist.all_gather([torch.empty(20000) for _ in range(WORLD)], torch.ones(20000))
            dist.barrier()
        if rank != 1:
            dist.all_reduce(torch.ones(5, dtype=torch.bfloat16), group=part)
        isthmus.torch.write_flight_record(folder)
        return len(isthmus.torch.flight_record()["entries"])

    counts = torch_ranks.run(WORLD, body, str(tmp_path))
    assert counts[0] == counts[1] + 1 == counts[2], counts
    text, collectives = analysed(tmp_path)
    assert len(collectives) == counts[0]
    assert all(c.pass_check and c.collective_state == "completed" for c in collectives), text
    assert "has errors" not in text and "Not all ranks" not in text, text
    assert {"gloo:all_reduce", "gloo:all_gather", "gloo:reduce_scatter", "gloo:all_to_all_v_single", "gloo:barrier"} <= {
        c.collective_name for c in collectives
    }


def test_the_analyser_names_the_rank_that_did_not_join(tmp_path: Path) -> None:
    def body(folder: str) -> None:
        rank = dist.get_rank()
        dist.all_reduce(torch.ones(8))
        if rank == 2:
            work = dist.all_reduce(torch.ones(8), async_op=True)
            tell("2 is inside")
            with pytest.raises(RuntimeError, match="rank 1"):
                work.wait()
        elif rank == 0:
            hear("2 is inside")
            dist.group.WORLD.set_timeout(timedelta(seconds=0.3))
            with pytest.raises(RuntimeError, match="rank 1"):
                dist.all_reduce(torch.ones(8))
        else:
            hear("0 has its record", "2 has its record")  # busy with something else
        isthmus.torch.write_flight_record(folder)
        tell(f"{rank} has its record")

    torch_ranks.run(WORLD, body, str(tmp_path))
    text, collectives = analysed(tmp_path)
    assert "Not all ranks joining collective" in text
    assert "missing ranks: {1}" in text
    assert [c.missing_ranks for c in collectives if c.missing_ranks] == [{1}]


def test_the_analyser_shows_who_called_something_else(tmp_path: Path) -> None:
    def body(folder: str) -> None:
        rank, x = dist.get_rank(), torch.ones(8)
        dist.all_reduce(x)
        if rank == 2:  # when the others are inside
            hear("0 is inside", "1 is inside")
            with pytest.raises(RuntimeError, match="broadcast"):
                dist.broadcast(x, 0)
        else:
            work = dist.all_reduce(x, async_op=True)
            tell(f"{rank} is inside")
            with pytest.raises(RuntimeError, match="broadcast"):
                work.wait()
        isthmus.torch.write_flight_record(folder)

    torch_ranks.run(WORLD, body, str(tmp_path))
    text, _ = analysed(tmp_path)
    # Whose call it takes for the right one depends on which file it read first.
    assert "Collective sequence number: 2 has errors" in text and "COLLECTIVE_TYPE_MISMATCH" in text, text
    assert "'broadcast'" in text and "'all_reduce'" in text, text


def test_a_record_is_written_whole_and_tells_of_every_group(tmp_path: Path) -> None:
    def body(folder: str) -> dict[str, Any]:
        part = dist.new_group([0, 1], group_desc="halves")
        gloo = dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(3, dtype=torch.float64), group=part)
        dist.all_reduce(torch.ones(3), group=gloo)
        path = isthmus.torch.write_flight_record(Path(folder) / "deep" / "er", prefix="trace_")
        # The other rank may be writing its own in the same folder.
        assert path.name == f"trace_{dist.get_rank()}"
        assert [p.name for p in path.parent.iterdir() if p.name.startswith(f".{path.name}")] == []
        loaded: dict[str, Any] = pickle.loads(path.read_bytes())
        return loaded

    record = torch_ranks.run(2, body, str(tmp_path))[1]
    descriptions = {config["desc"]: config["ranks"] for config in record["pg_config"].values()}
    assert descriptions == {"isthmus default_pg": "[0, 1]", "isthmus halves": "[0, 1]"}, "gloo's group is not ours"
    (entry,) = (e for e in record["entries"] if e["process_group"][1] == "isthmus halves")
    assert (entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"]) == ("gloo:all_reduce", [[3]], ["float64"])
    assert entry["state"] == "completed" and entry["time_discovered_completed_ns"] > entry["time_created_ns"]


def wanted(path: Path) -> bytes:
    """The record that a signal asks for."""
    path.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGUSR1)
    until(path.exists)
    return path.read_bytes()


def test_a_record_that_is_wanted_tells_of_every_communicator_of_the_process(tmp_path: Path) -> None:
    """Of PyTorch's groups in the analyser's format, of all in the library's; also when PyTorch's groups have ended."""

    def body(folder: Path) -> list[Any]:
        path = Path(os.environ["ISTHMUS_DUMP"])
        dist.init_process_group("isthmus", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
        os.environ.update(ISTHMUS_RANK="0", ISTHMUS_WORLD_SIZE="1")
        with isthmus.init() as comm:
            comm.barrier()
            beside = pickle.loads(wanted(path))
            dist.destroy_process_group()
            return [beside, pickle.loads(wanted(path))]

    environment = {"ISTHMUS_DUMP": str(tmp_path / "record")}
    ((beside, alone),) = torch_ranks.run(1, body, tmp_path, init=False, env=environment)
    assert [config["desc"] for config in beside["pg_config"].values()] == ["isthmus default_pg"], beside
    assert alone["pg_config"] == {} and [one["communicator"] for one in alone["isthmus"]] == ["world"], alone
    collectives = [[entry["collective"] for entry in one["entries"]] for one in beside["isthmus"]]
    assert len(collectives) == 2 and collectives[1] == ["barrier"], beside


def test_groups_come_and_go_where_records_are_wanted(tmp_path: Path) -> None:
    """Two threads wait for what is wanted, one of the library and one of Python. Both end with the last group."""

    def body(folder: Path) -> None:
        for number in range(100):
            dist.init_process_group("isthmus", store=dist.FileStore(str(folder / f"{number}"), 1), rank=0, world_size=1)
            dist.destroy_process_group()

    torch_ranks.run(1, body, tmp_path, init=False, env={"ISTHMUS_DUMP": str(tmp_path / "record")})
