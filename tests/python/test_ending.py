"""How a job ends in which one rank raises: all name that rank, and so does its launcher."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import launch
from patience import SOON, patient

RAISES = """
import array, isthmus
comm = isthmus.init()
x = array.array("i", [1])
comm.barrier()
if comm.rank == 1:
    raise ValueError("a bad\\nbatch \\x1b[31m" + "x" * 1000)
comm.all_reduce(x)
"""

SLOW = """
import atexit, os, time
if os.environ["RANK"] == "1":
    atexit.register(time.sleep, 8)
"""

WITH_RAISES = """
import array, isthmus
with isthmus.init() as comm:
    x = array.array("i", [1])
    comm.barrier()
    if comm.rank == 1:
        raise ValueError("a bad batch")
    comm.all_reduce(x)
"""

EXITS_WELL = """
import array, sys, isthmus
with isthmus.init() as comm:
    x = array.array("i", [comm.rank])
    comm.barrier()
    if comm.rank == 1:
        comm.send(x, 0)
        sys.exit(STATUS)
    comm.recv(x, 1, timeout=SECONDS)
    assert x[0] == 1
    print("it came")
    comm.recv(x, 1)
"""

TORCH_RAISES = """
import torch, torch.distributed as dist
dist.init_process_group("isthmus")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("a bad batch")
dist.all_reduce(torch.ones(2))
"""


def ends(program: str, ranks: int) -> list[launch.Result]:
    with launch.start([sys.executable, "-c", program], ranks, env={"ISTHMUS_TIMEOUT": str(SOON)}) as job:
        return list(job.wait(2 * SOON))


def test_the_others_say_who_raised_and_what_in_one_short_line() -> None:
    ended = ends(RAISES, 3)
    assert all(end.returncode == 1 for end in ended), ended
    assert "ValueError: a bad" in ended[1].stderr
    for end in (ended[0], ended[2]):
        last = end.stderr.rstrip().splitlines()[-1]
        assert re.fullmatch(
            rf"isthmus\._errors\.PeerLostError: #2 all_reduce \(int32, sum, 1 elements\) on rank {end.rank} of 'world' over "
            r"shared memory: rank 1 \(pid \d+ on \S+\) raised ValueError: a bad batch \[31mx{100,250}\.\.\.",
            last,
        ), last


@pytest.mark.parametrize("status", ["", "0", "None", "3", '"no data"'])
def test_who_leaves_a_block_by_exit_has_left_well_where_the_status_says_so(status: str) -> None:
    """What it had sent comes. The others hear that it has left, or with what it has failed."""
    program = EXITS_WELL.replace("STATUS", status).replace("SECONDS", str(SOON))
    zero, one = ends(program, 2)
    said = zero.stderr.rstrip().splitlines()[-1]
    well = status in ("", "0", "None")
    assert zero.returncode == 1 and one.returncode == {"3": 3, '"no data"': 1}.get(status, 0)
    assert zero.stdout == "it came\n" or not well
    assert ("has destroyed its side of the communicator" in said) == well, said
    assert ("raised SystemExit" in said) != well, said


@pytest.mark.parametrize("by_torch", [False, True], ids=["isthmus", "torch.distributed"])
def test_threads_that_are_in_calls_do_not_stop_the_end_of_the_program(by_torch: bool) -> None:
    """Python ends them where they take the GIL again."""
    program = """
import threading, time, isthmus
comm = isthmus.init()
look = comm.topology
"""
    if by_torch:
        pytest.importorskip("torch")
        program = """
import datetime, threading, time, torch, torch.distributed as dist, isthmus.torch
dist.init_process_group("isthmus", timeout=datetime.timedelta(seconds=60))
look = dist.group.WORLD._get_backend(torch.device("cpu")).topology
"""
    program += """
def watch():
    while True:
        isthmus.context_stats()
        try:
            look()
        except Exception:  # the communicator ends before the interpreter does; Python has closed stderr then
            pass
for _ in range(8):
    threading.Thread(target=watch, daemon=True).start()
time.sleep(0.02)
"""
    for _ in range(1 if by_torch else 3):
        ended = ends(program, 1)
        assert [end.returncode for end in ended] == [0], ended


def test_an_exception_hook_of_the_program_is_called_as_before() -> None:
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine:', error, file=sys.stderr)\n"
    ended = ends(hook + RAISES.replace("x * 1000", ""), 2)
    assert "mine: a bad" in ended[1].stderr and "Traceback" not in ended[1].stderr, ended[1].stderr
    assert "raised ValueError: a bad batch" in ended[0].stderr, ended[0].stderr


def test_in_an_interactive_interpreter_an_exception_ends_nothing() -> None:
    program = """
import sys, isthmus
sys.ps1 = ">>> "
comm = isthmus.init()
if comm.rank == 1:
    try:
        raise ValueError("a slip")
    except ValueError:
        sys.excepthook(*sys.exc_info())
comm.barrier()
comm.destroy()
"""
    ended = ends(program, 2)
    assert [end.returncode for end in ended] == [0, 0], ended
    assert "ValueError: a slip" in ended[1].stderr


@pytest.mark.parametrize(
    ("program", "attempts"),
    [
        pytest.param(RAISES, 3, id="isthmus.init"),
        pytest.param(WITH_RAISES, 3, id="with isthmus.init"),
        pytest.param(TORCH_RAISES, 3, id="torch.distributed"),
        pytest.param(SLOW + RAISES, 1, id="and is slow to end"),
    ],
)
def test_torchrun_names_the_rank_that_raised(tmp_path: Path, program: str, attempts: int) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    # However late torchrun looks, which ends the others as soon as it has seen rank 1.
    others_stay = f"import isthmus._ending as ending\nending._SEEN = ending._LONGEST_FAILED = {SOON}\n"
    slow = SLOW if program.startswith(SLOW) else ""  # registered first, so it comes behind the communicator's end
    script.write_text(slow + others_stay + program.removeprefix(SLOW))
    env = {k: v for k, v in launch.environment(0, 1, 1).items() if not k.startswith("ISTHMUS_")}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    for attempt in range(attempts):
        logs = tmp_path / str(attempt)  # of each rank its own: what ranks write at one time would be mixed
        place = f"--nproc-per-node 3 --master-addr 127.0.0.1 --master-port {launch.free_port()} --redirects 2"
        torchrun = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *place.split(), "--log-dir", str(logs), str(script)],
            env={**env, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = torchrun.communicate(timeout=patient(150))
        finally:
            if torchrun.poll() is None:
                torchrun.send_signal(signal.SIGTERM)  # it ends its ranks
                torchrun.wait(SOON)
        assert torchrun.returncode != 0, out + err
        root = err[err.index("Root Cause (first observed failure)") :]
        found = re.search(r"rank\s*: (\d+)", root)
        assert found and found[1] == "1", err
        said = {file.parent.name: file.read_text() for file in logs.rglob("stderr.log")}
        assert sorted(said) == ["0", "1", "2"] and "ValueError: a bad" in said["1"], said
        others = [line for rank in "02" for line in said[rank].splitlines() if "Error: " in line and "all_reduce" in line]
        assert all("raised ValueError: a bad batch" in line for line in others), said
