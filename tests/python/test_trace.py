"""ISTHMUS_TRACE and `isthmus trace`: the steps of collectives with their times, and what they say of a slow job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import run_fleet
from isthmus import _trace
from isthmus.__main__ import main
from patience import patient
from ranks import run_processes

MIB = 1 << 20


def all_reduces(comm: isthmus.Comm, times: int, late: int = -1, seconds: float = 0) -> Any:
    """The plan's cost of one, and the record."""
    x = np.ones(MIB // 4, np.float32)
    for _ in range(times):
        comm.barrier()
        if comm.rank == late:
            time.sleep(seconds)
        comm.all_reduce(x)
    return comm.explain("all_reduce", nbytes=MIB).data, comm.dump()


def traced(folder: Path, ranks: int = 2, times: int = 1, *, more: dict[str, str] | None = None, **options: Any) -> list[Any]:
    env = {"ISTHMUS_TRACE": str(folder / "rank_%r"), **(more or {})}
    late = {name: options.pop(name) for name in ("late", "seconds") if name in options}
    return run_processes(ranks, all_reduces, times, *late.values(), env=env, **options)


def files(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("rank_*")))


def test_without_the_setting_no_step_is_noted() -> None:
    assert all("steps" not in record for _, record in run_processes(2, all_reduces, 1))


@pytest.mark.parametrize("bridge", ["shm", "tcp"])
def test_what_is_noted_of_a_call_is_what_its_plan_says(tmp_path: Path, bridge: str) -> None:
    results = traced(tmp_path, islands="a:1,b:1", bridge=bridge)
    for plan, record in results:
        sequence = next(entry["sequence"] for entry in record["entries"] if entry["collective"] == "all_reduce")
        steps = [step for step in record["steps"] if step[0] == sequence]
        for stage in plan["stages"]:
            noted = [step for step in steps if step[2] == stage["name"]]
            assert sum(step[5] for step in noted if step[1] == "copy") == plan["chunks"] * stage["chunk_bytes"]["copied"]
            sums = sum(text.startswith("reduce ") for text in stage["steps"])
            assert sum(step[1] == "reduce" for step in noted) == plan["chunks"] * sums
            assert {step[3] for step in noted} <= set(range(plan["chunks"]))
        assert any(step[1] == "reduce" for step in steps)


def test_a_step_lies_within_its_call_and_one_host_steps_behind_another(tmp_path: Path) -> None:
    for _, record in traced(tmp_path, 3, 4):
        calls = {e["sequence"]: (e["submitted_us"] - 1, e["submitted_us"] + e["duration_us"] + 1) for e in record["entries"]}
        free = 0.0
        for sequence, _, _, _, _, _, begun, duration in sorted(record["steps"], key=lambda step: float(step[6])):
            first, last = calls[sequence]
            assert first <= begun and begun + duration <= last
            assert begun >= free - 0.002, "steps of one communicator do not overlap"
            free = begun + duration


def test_a_rank_that_calls_late_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path, 3, 5, late=2, seconds=patient(0.2))
    assert main(["trace", *files(tmp_path)]) == 0
    said = capsys.readouterr().out
    of_all_reduce = said[said.index("all_reduce of 1 MiB float32, 'world', 3 ranks, 5 times") :].split("\n→")[0]
    assert "rank 2 is last 5 of 5 times" in of_all_reduce
    assert "→ rank 2 calls late: look what it does before" in of_all_reduce


def test_a_slow_device_is_named_and_a_rehearsal_says_that_it_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"ISTHMUS_TRACE": str(tmp_path / "rank_%r"), "REHEARSAL_COPY_GBPS": "0.01"}
    run_fleet("nvidia:1,amd:1", on_devices, env=env)
    assert main(["trace", *files(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "of the time of a rank: waits for its device" in said
    for path in files(tmp_path):  # `isthmus rehearse` sets it for its ranks
        record = json.loads(Path(path).read_text().splitlines()[-1])
        Path(path).write_text(json.dumps({**record, "rehearsal": "nvidia:1,amd:1"}))
    assert main(["trace", *files(tmp_path)]) == 0
    assert "devices are simulated, and no time below is a measurement of one" in capsys.readouterr().out
    assert main(["trace", "--json", *files(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["rehearsal"] == "nvidia:1,amd:1"


def on_devices(comm: isthmus.Comm) -> None:
    from devices import OnDevice

    for _ in range(3):
        OnDevice(comm).all_reduce(np.ones(MIB // 4, np.float32))


def parts(comm: isthmus.Comm) -> None:
    with comm.split(comm.rank // 2, name="part") as part:  # two halves, each with a rank 0
        part.barrier()
    comm.barrier()


def test_each_communicator_adds_a_line_and_a_new_job_begins_the_file_anew(tmp_path: Path) -> None:
    for _ in range(2):
        run_processes(4, parts, env={"ISTHMUS_TRACE": str(tmp_path / "new" / "rank_%r")}, fresh=True)
        assert len(files(tmp_path / "new")) == 4
        for path in files(tmp_path / "new"):
            names = [json.loads(line)["communicator"] for line in Path(path).read_text().splitlines()]
            assert names == ["part", "world"]


def test_older_steps_are_lost_and_the_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = traced(tmp_path, 2, 30, more={"ISTHMUS_TRACE_STEPS": "256"})
    assert all(len(record["steps"]) <= 256 and record["steps_lost"] > 0 for _, record in results)
    assert main(["trace", *files(tmp_path)]) == 0
    assert "(rank 1 of 'world') are lost (ISTHMUS_TRACE_STEPS)" in capsys.readouterr().out


def test_a_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path, 3)
    assert main(["trace", files(tmp_path)[0], files(tmp_path)[2]]) == 0
    assert "of 'world' there is no record of rank 1" in capsys.readouterr().out


def test_the_timeline_has_each_call_and_each_step_on_one_clock(tmp_path: Path) -> None:
    results = traced(tmp_path, 2, 2)
    out = tmp_path / "timeline.json"
    assert main(["trace", *files(tmp_path), "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) >= 0
    for rank, (_, record) in enumerate(results):
        mine = [event for event in spans if event["pid"] == rank]
        assert len([event for event in mine if event["cat"] in ("work", "wait")]) >= len(record["steps"])
        assert len([event for event in mine if event["name"].endswith(" all_reduce")]) == 2
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"world, rank 1", "world, rank 1: steps"} < names


# ---- records that a test makes up ------------------------------------------------------------------------------------


def record(rank: int, calls: list[tuple[float, float]], **more: Any) -> dict[str, Any]:
    """Of a rank of two: all_reduces from .. to, in ms of its host's clock."""
    entries = [
        {
            "sequence": number + 1,
            "collective": "all_reduce",
            "dtype": "float32",
            "op": "sum",
            "bytes": 64,
            "root": 0,
            "submitted_us": begun * 1000,
            "duration_us": (ended - begun) * 1000,
            "result": "ok",
        }
        for number, (begun, ended) in enumerate(calls)
    ]
    common = {
        "communicator": "world",
        "epoch": 7,
        "rank": rank,
        "members": [0, 1],
        "host": f"host{rank}",
        "boot": f"boot{rank}",
    }
    clock = {"pid": 1, "now_us": 0, "unix_us": 0}
    lost = {"steps_lost": 0, "entries_lost": 0}
    return {**common, **clock, "entries": entries, "steps": [], **lost, "streams": [], **more}


def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], *records: dict[str, Any]) -> str:
    path = tmp_path / "records"
    path.write_text("\n".join(map(json.dumps, records)))
    assert main(["trace", str(path)]) == 0
    return capsys.readouterr().out


def test_the_times_of_two_hosts_are_put_on_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = record(1, [(1006, 1008), (1016, 1018)], unix_us=-1_000_000)  # that host was started a second earlier
    said = report(tmp_path, capsys, record(0, [(1, 8), (11, 18)]), late)
    assert "rank 1 is last 2 of 2 times; the last is 5 ms behind the first" in said
    assert "time    2 ms from the last rank's call to the end" in said


def test_clocks_that_are_apart_are_said_to_be_and_nobody_is_called_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = report(tmp_path, capsys, record(0, [(1, 2)]), record(1, [(5, 6)]))
    assert "the clocks of the hosts of 'world' are at least 3 ms apart, so who calls last is not said" in said
    assert "is last" not in said


def test_a_wait_for_a_rank_is_followed_to_what_that_rank_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [[1, "data", "finish", 0, 1, 64, 1000.0, 9000.0]]
    works = [[1, "reduce", "finish", 0, -1, 64, 1000.0, 6000.0]]
    said = report(tmp_path, capsys, record(0, [(1, 11)], steps=waits), record(1, [(1, 11)], steps=works))
    assert "→ 45% of the time of a rank: waits for data. Most is awaited of rank 1, and 60% of its own time: sums" in said


def test_waits_are_followed_from_rank_to_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    does = (
        [1, "data", "x", 0, 1, 64, 1000.0, 9000.0],
        [1, "data", "x", 0, 2, 64, 1000.0, 9500.0],
        [1, "reduce", "x", 0, -1, 64, 1000.0, 9000.0],
    )
    three = [record(rank, [(1, 11)], steps=[does[rank]], members=[0, 1, 2], boot="one") for rank in range(3)]
    said = report(tmp_path, capsys, *three)
    assert (
        "awaited of rank 2, and 90% of its own time: sums" in said
        or "which waits for rank 2, and 90% of its own time: sums" in said
    )


def test_memory_that_is_waited_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [[1, "memory", "", 0, -1, 0, 1000.0, 9000.0]]
    said = report(tmp_path, capsys, *(record(rank, [(1, 11)], steps=waits) for rank in (0, 1)))
    assert "→ 90% of the time of a rank: waits for memory for its slots" in said


def test_groups_of_one_name_and_other_ranks_stay_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halves = [
        record(rank, [(1, 11 + half)], epoch=half, boot="one", pid=2 * half + rank) for half in (0, 1) for rank in (0, 1)
    ]
    said = report(tmp_path, capsys, *halves)
    assert said.count("all_reduce of 64 B float32, 'world', 2 ranks, once") == 2


def test_a_call_that_failed_is_not_counted_and_the_report_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = record(1, [(1, 2), (5000, 5000.01)], boot="boot0")
    late["entries"][1]["result"] = "aborted"
    first = record(0, [(1, 2), (3, 2003)])
    first["entries"][1]["result"] = "timeout"
    said = report(tmp_path, capsys, first, late)
    assert "'world', 2 ranks, once" in said
    assert "2 operations of 'world' failed on one rank or more, and are not counted" in said
    assert "apart" not in said


def test_a_half_written_line_costs_nothing_but_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "records"
    path.write_text("\n".join(map(json.dumps, (record(0, [(1, 2)]), record(1, [(1, 2)])))) + '\n{"communicator": "wor')
    assert main(["trace", str(path)]) == 0
    said = capsys.readouterr().out
    assert "all_reduce of 64 B float32, 'world', 2 ranks, once" in said
    assert f"note: {path} has 1 line that cannot be read" in said


def test_a_step_that_begins_before_its_turn_counts_from_its_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    early = [[2, "data", "x", 0, 1, 64, 2000.0, 8000.0]]
    calls: list[tuple[float, float]] = [(1, 6), (2, 16)]
    said = report(tmp_path, capsys, record(0, calls, steps=early), record(1, calls))
    assert "rank 0  waits for data of rank 1 40%" in said


def test_data_of_a_rank_that_does_nothing_is_a_slow_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [[1, "data", "finish", 0, 1, 64, 1000.0, 9000.0]]
    said = report(tmp_path, capsys, record(0, [(1, 11)], steps=waits), record(1, [(1, 11)], steps=[]))
    assert "Most is awaited of rank 1, and none of them works much: a way between them is slow" in said


def test_ranks_that_wait_for_each_other_may_have_no_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [[[1, "rank", "finish", 0, 1 - rank, 64, 1000.0, 9000.0]] for rank in (0, 1)]
    said = report(tmp_path, capsys, *(record(rank, [(1, 11)], steps=waits[rank]) for rank in (0, 1)))
    assert "→ 90% of the time of a rank: waits for ranks of its host. Most is awaited of rank" in said
    assert "and none of them works much: look whether each has a processor" in said


def test_a_way_that_loses_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"from": "10.0.0.1:1", "to": "10.0.0.2:2"}
    ways = [{**ends, "segments": 100_000, "sent_again": again} for again in (100, 4000)]
    peer = {"hostname": "host1", "pid": 2, "streams": [], "connections": ways}
    said = report(tmp_path, capsys, record(0, [(1, 2)], streams=[peer]), record(1, [(1, 2)]))
    who = "process 1 on host0 (rank 0 of 'world')"
    lossy = f"the way of {who} from 10.0.0.1:1 to host1 (10.0.0.2:2) loses data: 4000 of 100000 segments were sent again"
    assert [line for line in said.splitlines() if "loses" in line] == [f"note: {lossy}"]


def connections(comm: isthmus.Comm) -> Any:
    comm.all_reduce(np.ones(MIB // 4, np.float32))
    streams = isthmus.context_stats()["streams"]
    comm.barrier()  # none of them has ended yet
    return streams


def test_the_connections_between_two_processes_are_told_with_what_went() -> None:
    for streams in run_processes(2, connections, islands="a:1,b:1", bridge="tcp"):
        (peer,) = streams
        assert len(peer["connections"]) == len(peer["streams"]) > 0
        assert all(way["round_trip_us"] > 0 and way["from"] != way["to"] for way in peer["connections"])
        assert sum(way["segments"] for way in peer["connections"]) > 0


def test_an_operation_behind_another_begins_when_that_one_has_ended() -> None:
    rank = _trace._rank(record(0, [(1, 5), (2, 9)]), Path("it"))
    assert [op.turn_us for op in rank.operations] == [1000, 5000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the files have no record of a communicator"),
        ("hello", "is no trace"),
        ("\x80\x04", "is a flight record in PyTorch's format"),
        ("[1]", "is no trace: it has something else than records of communicators"),
        ('{"entries": []}', "has no steps: the job must run with ISTHMUS_TRACE set"),
        ('{"entries": [], "steps": [[1]]}', "is no trace"),
        (json.dumps(record(0, [(1, 2)], streams=[1])), "is no trace"),
        (json.dumps(record(0, [(1, 2)], steps=[[1, "copy", "x", 0, -1, 5, "now", 1]])), "is no trace"),
        (json.dumps(record(0, [(1, 2)], members="two")), "is no trace"),
        (json.dumps(record(0, [(1, 2)], steps=[{}])), "is no trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    assert main(["trace", str(path)]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
