"""ISTHMUS_DUMP: each rank writes its flight record at a deadline, and when it gets SIGUSR1."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from events import until
from isthmus import launch
from patience import SOON, WHOLE, patient

# Rank 1 does not join until its file is there; the others have an error at the deadline of rank 0, which calls last.
LATE = """
import array, os, sys, threading, time, isthmus
comm = isthmus.init()
x = array.array("f", [1] * 4)
inside = sys.argv[1] + ".inside"

def tell():
    while not any(entry["state"] == "running" for entry in comm.dump()["entries"]): time.sleep(0.001)
    open(inside, "w").close()

comm.barrier()
if comm.rank == 1:
    while not os.path.exists(sys.argv[1]): isthmus.context_stats()
else:
    if comm.rank == 2:
        threading.Thread(target=tell, daemon=True).start()
    while comm.rank == 0 and not os.path.exists(inside): time.sleep(0.001)
    try:
        comm.all_reduce(x, timeout=float(sys.argv[2]) if comm.rank == 0 else None)
    except isthmus.Error as error:
        print(error, flush=True)
comm.destroy()
"""

# Prints "ready", and ends when its file is there.
WAITS = """
import os, sys, time, isthmus
{before}
comm = isthmus.init()
part = comm.split(0, name="part")
comm.barrier()
print("ready", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
part.destroy()
comm.destroy()
"""

TORCH = """
import os, sys, threading, time, torch, torch.distributed as dist, isthmus.torch
from datetime import timedelta
dist.init_process_group("isthmus")
dist.all_reduce(torch.ones(8))
inside = sys.argv[1] + ".inside"

def tell():
    while not any(entry["state"] == "running" for entry in isthmus.torch.dump()["entries"]): time.sleep(0.001)
    open(inside, "w").close()

if dist.get_rank() == 1:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
else:
    if dist.get_rank() == 2:
        threading.Thread(target=tell, daemon=True).start()
    else:
        while not os.path.exists(inside): time.sleep(0.001)
        dist.group.WORLD.set_timeout(timedelta(seconds=float(sys.argv[2])))
    try:
        dist.all_reduce(torch.ones(8))
    except RuntimeError as error:
        print(error, flush=True)
dist.destroy_process_group()
"""


def written(path: Path) -> Any:
    until(path.exists)
    return json.loads(path.read_text())


def run_late(program: str, folder: Path, ranks: int) -> list[launch.Result]:
    """Runs it with a record of each rank; rank 1 goes on when all records are there."""
    records, go = folder / "records", folder / "go"
    env = {"ISTHMUS_DUMP": str(records / "rank_%r"), "ISTHMUS_TIMEOUT": str(WHOLE)}
    with launch.start([sys.executable, "-c", program, str(go), str(patient(0.5))], ranks, env=env) as job:
        deadline = time.monotonic() + WHOLE
        while len(list(records.glob("rank_*"))) < ranks and time.monotonic() < deadline:
            time.sleep(0.01)
        go.touch()
        return list(job.wait(WHOLE))


def test_at_a_deadline_every_rank_writes_its_record(tmp_path: Path) -> None:
    ended = run_late(LATE, tmp_path, 3)
    assert [end.returncode for end in ended] == [0, 0, 0], ended
    files = sorted((tmp_path / "records").iterdir())
    assert [file.name for file in files] == ["rank_0", "rank_1", "rank_2"]
    for rank, file in enumerate(files):
        (record,) = json.loads(file.read_text())
        assert (record["communicator"], record["rank"], record["size"]) == ("world", rank, 3)
        assert record["failure"]["code"] == "timeout" and "rank 1" in record["failure"]["text"]
        calls = [entry["collective"] for entry in record["entries"]]
        assert calls == (["barrier"] if rank == 1 else ["barrier", "all_reduce"])


def start_waiting(folder: Path, before: str = "") -> subprocess.Popen[str]:
    env = {k: v for k, v in launch.environment(0, 1, 1).items() if not k.startswith("ISTHMUS_")}
    env |= {"ISTHMUS_RANK": "0", "ISTHMUS_WORLD_SIZE": "1", "ISTHMUS_DUMP": str(folder / "deep" / "er" / "%r.%p")}
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(before=before), str(folder / "go")],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str], folder: Path) -> None:
    (folder / "go").touch()
    try:
        _, said = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert process.returncode == 0, said


def test_a_record_lacks_no_operation_that_ends_while_it_is_made(processes: Callable[..., list[Any]]) -> None:
    def body(comm: isthmus.Comm) -> tuple[int, list[int]]:
        x, over, missing = np.ones(4, np.float32), threading.Event(), []
        looks = 0

        def look() -> None:
            nonlocal looks
            while not over.is_set():
                seen = [entry["sequence"] for entry in comm.dump()["entries"]]
                missing.extend(b for a, b in itertools.pairwise(seen) if b != a + 1)
                looks += 1

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(300):
            comm.all_reduce(x, "max")
        over.set()
        thread.join()
        return looks, missing

    for looks, missing in processes(3, body):
        assert looks and not missing, (looks, missing)


def test_a_record_says_for_which_message_a_rank_waits(processes: Callable[..., list[Any]]) -> None:
    """The sender's message is so long that it goes in parts. Rank 1 goes on when both have been seen to wait."""

    def body(comm: isthmus.Comm) -> tuple[str, list[tuple[str, int]]]:
        x, small = np.ones(1 << 20), np.ones(1)
        other = 1 - comm.rank
        call, given = (comm.send, (x, 0, 5)) if comm.rank == 1 else (comm.recv, (small, 1, 9))
        thread = threading.Thread(target=call, args=given)
        thread.start()
        until(lambda: comm.dump()["waiting"] is not None)
        record = comm.dump()
        if comm.rank == 1:
            comm.recv(np.ones(1), other)
            comm.send(small, other, 9)
        else:
            comm.send(np.ones(1), other)
            thread.join()
            comm.recv(x, other, 5)
        thread.join()
        return record["waiting"], sorted({(e["collective"], e["tag"]) for e in record["entries"]})

    (receiver, received), (sender, sent) = processes(2, body)
    peer = r" of 'world', waiting for rank {} \(pid \d+ on [^)]+\) to "
    waits = r"recv from rank 1 \(tag 9, float64, 1 elements\)" + peer.format(1) + "send it"
    assert re.fullmatch(waits, receiver), receiver
    waits = r"send to rank 0 \(tag 5, float64, 1048576 elements\)" + peer.format(0) + "receive it"
    assert re.fullmatch(waits, sender), sender
    assert (received, sent) == ([("recv", 9)], [("send", 5)])


def test_the_signal_has_the_record_written_each_time_it_comes(tmp_path: Path) -> None:
    process = start_waiting(tmp_path)
    path = tmp_path / "deep" / "er" / f"0.{process.pid}"
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        record = written(path)
        assert [comm["communicator"] for comm in record] == ["world", "part"]
        path.unlink()
    finish(process, tmp_path)


def test_a_handler_of_the_program_keeps_the_signal(tmp_path: Path) -> None:
    process = start_waiting(
        tmp_path, f"import signal; signal.signal(signal.SIGUSR1, lambda *_: open({str(tmp_path / 'mine')!r}, 'w').close())"
    )
    process.send_signal(signal.SIGUSR1)
    until((tmp_path / "mine").exists)
    finish(process, tmp_path)
    assert not (tmp_path / "deep").exists()


def test_without_the_setting_the_signal_ends_the_process_as_always(tmp_path: Path) -> None:
    program = WAITS.format(before="os.environ.pop('ISTHMUS_DUMP', None)")
    env = launch.environment(0, 1, 1)
    command = [sys.executable, "-c", program, str(tmp_path / "go")]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.wait(SOON) == -signal.SIGUSR1


def test_nothing_is_left_when_the_last_communicator_is_gone(processes: Callable[..., list[Any]], tmp_path: Path) -> None:
    def body(folder: str) -> list[str]:
        import isthmus

        def threads() -> list[str]:
            names = []
            for task in Path("/proc/self/task").iterdir():
                with suppress(OSError):  # it has ended
                    names.append((task / "comm").read_text().strip())
            return [name for name in names if name.startswith("isthmus")]

        os.environ["ISTHMUS_DUMP"] = folder
        comm = isthmus.init()
        while "isthmus-dump" not in threads():  # it gives itself its name
            pass
        comm.destroy()
        until(lambda: not threads(), "an end of all threads")  # the kernel lists one for a moment that was joined
        return threads()

    assert processes(2, body, str(tmp_path / "%r"), init=False) == [[], []]


def test_under_torch_the_analyser_reads_the_records(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = run_late(TORCH, tmp_path, 3)
    assert [end.returncode for end in ended] == [0, 0, 0], ended
    records = tmp_path / "records"
    assert pickle.loads((records / "rank_1").read_bytes())["rank"] == 1
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(records), "-p", "rank_"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patient(120))
    assert done.returncode == 0 and "missing ranks: {1}" in done.stdout, done.stdout
