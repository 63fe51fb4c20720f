"""torchrun starts a job again after a rank has died: what the dead attempt left behind does no harm to the next one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from isthmus import launch
from patience import SOON, patient

pytest.importorskip("torch")

# What every attempt says goes to a file, one write a line: the ranks' standard outputs are one pipe.
START = """
import os, signal, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = int(os.environ["RANK"])
record = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def say(what):
    os.write(record, f"attempt {attempt}, rank {rank}: {what}\\n".encode())

def fatal():
    if attempt == 0 and rank == 1:
        say("dies")
        os.kill(os.getpid(), signal.SIGKILL)
"""

# Where the system has given torchrun its port, Isthmus computes one from it, which may be another test's: of those, and of
# `isthmus launch`, each has a name while its job runs (launch.free_port). So this job takes the name, or says it cannot.
TAKEN = "another job has the port"
OWN_PORT = f"""
import socket
if rank == 0 and int(os.environ["MASTER_PORT"]) >= 32768:
    h = 2166136261
    for c in ("torchrun" + os.environ["MASTER_PORT"]).encode():
        h = ((h ^ c) * 16777619) & 0xffffffff
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\\0isthmus-port-{{20000 + h % 12000}}")
    except OSError:
        say("{TAKEN}")
        sys.exit(1)
"""

# The barrier: rank 1 does not die before rank 0 has the sum. How rank 0 ends then is for the library to say or for torchrun.
INIT = f"""{START}{OWN_PORT}
import array, isthmus
with isthmus.init(timeout=60) as comm:
    x = array.array("i", [rank + 1])
    comm.all_reduce(x)
    say(f"the sum is {{x[0]}}")
    comm.barrier()
    fatal()
    large = array.array("d", [1.0]) * (1 << 17)
    comm.all_reduce(large)
    say(f"the end is {{sum(large):.0f}}")
"""

TORCH = f"""{START}
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("isthmus", timeout=timedelta(seconds=60))
x = torch.tensor([rank + 1])
dist.all_reduce(x)
say(f"the sum is {{x.item()}}")
pair = dist.new_group([0, 1])  # a second group leaves keys of its own
dist.barrier(pair)
fatal()
large = torch.ones(1 << 17, dtype=torch.float64)
dist.all_reduce(large, group=pair)
say(f"the end is {{large.sum().item():.0f}}")
dist.destroy_process_group()
"""


def environment() -> dict[str, str]:
    """Ours, without what any launcher said."""
    clean = launch.environment(0, 1, 1)
    named = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {k: v for k, v in clean.items() if not k.startswith("ISTHMUS_") and k not in named} | {"OMP_NUM_THREADS": "1"}


@pytest.mark.product(4)
@pytest.mark.parametrize("program", [pytest.param(INIT, id="isthmus.init"), pytest.param(TORCH, id="torch.distributed")])
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_a_job_that_lost_a_rank_runs_in_its_second_attempt(tmp_path: Path, program: str, rendezvous: str) -> None:
    script = tmp_path / "job.py"
    record = tmp_path / "record"
    script.write_text(program)
    # Either way both attempts have the same port and the same name.
    place = ["--standalone"] if rendezvous == "c10d" else ["--master-port", str(launch.free_port())]
    command = [
        sys.executable,
        *"-m torch.distributed.run --max-restarts 1 --nproc-per-node 2".split(),
        *place,
        str(script),
        str(record),
    ]
    for _ in range(5):
        record.unlink(missing_ok=True)
        torchrun = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, err = torchrun.communicate(timeout=patient(150))
        finally:
            if torchrun.poll() is None:
                torchrun.send_signal(signal.SIGTERM)  # it ends its ranks
                torchrun.wait(SOON)
        if TAKEN not in record.read_text():
            break
    assert torchrun.returncode == 0, out + err
    everything = (f"attempt {attempt}, rank {rank}: the sum is 3" for attempt in range(2) for rank in range(2))
    ends = (f"attempt 1, rank {rank}: the end is {2 << 17}" for rank in range(2))
    assert sorted(record.read_text().splitlines()) == sorted([*everything, "attempt 0, rank 1: dies", *ends])


MEETS = f"""
import os, sys
rank, say = int(os.environ["RANK"]), print
{OWN_PORT}
import array, isthmus
with isthmus.init(timeout=60) as comm:
    x = array.array("i", [comm.rank + 1])
    comm.all_reduce(x)
    assert x[0] == 3
"""


def test_ranks_meet_also_where_another_program_was_given_the_port_behind_the_one_that_torchrun_was_given(
    tmp_path: Path,
) -> None:
    """As with --standalone, where the system gives torchrun a port, and the next one to any connection."""
    (tmp_path / "job.py").write_text(MEETS)
    for _ in range(5):
        with ExitStack() as others:
            while True:
                one = others.enter_context(socket.socket())
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1] - 1
                with suppress(OSError), socket.socket() as free:
                    free.bind(("127.0.0.1", port))
                    break
            command = [sys.executable, *f"-m torch.distributed.run --nproc-per-node 2 --master-port {port}".split()]
            job = subprocess.run(
                [*command, tmp_path / "job.py"],
                env=environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=patient(150),
                check=False,
            )
        if TAKEN not in job.stdout:
            break
    assert job.returncode == 0, job.stdout + job.stderr
