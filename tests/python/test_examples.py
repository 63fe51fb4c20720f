"""Every program under examples/ runs, and says what it has to. (train_digits.py is a test of test_torch_devices.py.)"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus import launch, rehearse
from patience import patient
from ranks import DEADLINE, run_processes, run_task

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
HEADERS = ROOT / "build" / "vendor-headers"
ELSEWHERE = {"train_digits.py"}


def run_here(example: str) -> str:
    """On this rank, as `python EXAMPLE`; what it prints."""
    import contextlib
    import io
    import runpy

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        except SystemExit as end:
            assert not end.code, said.getvalue()
    return said.getvalue()


def compiled(source: str, to: Path, *words: str | Path) -> Path:
    command = ["cc", "-std=gnu99", "-Wall", "-Wextra", "-Werror", str(EXAMPLES / source), *map(str, words), "-o", str(to)]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=patient(60))
    assert ended.returncode == 0, ended.stderr
    return to


def started(program: Path, ranks: int, **options: Any) -> str:
    with launch.start([str(program)], ranks, env={"ISTHMUS_TIMEOUT": str(DEADLINE)}, **options) as job:
        ended = job.wait(patient(60))
    assert [end.returncode for end in ended] == [0] * ranks, ended
    return "".join(end.stdout for end in ended)


@pytest.mark.parametrize(
    "example, ranks, islands, bridge, says",
    [
        ("all_reduce.py", 4, "a:2,b:2", "tcp", "4 ranks: the sum is 10, the average 1.5"),
        ("ring.py", 3, None, None, "the token passed 3 ranks"),
    ],
)
def test_a_program_of_numpy(example: str, ranks: int, islands: str | None, bridge: str | None, says: str) -> None:
    said = run_processes(ranks, run_here, example, islands=islands, bridge=bridge, init=False)
    assert says in said[0] and said[1] == ""


def test_a_program_of_cupy_runs_or_says_in_words_why_it_does_not() -> None:
    said = run_processes(2, run_here, "cupy_all_reduce.py", init=False)
    assert "2 ranks: the average is 1.5" in said[0] or said[0].startswith("skipped: CuPy finds no GPU here ("), said


@pytest.mark.parametrize(
    "example, says",
    [
        ("ddp.py", "2 ranks: the loss fell, and all ranks hold identical bits"),
        ("fsdp2.py", "2 ranks: the loss fell; rank 0 keeps 2689 of 5313 parameters"),
    ],
)
def test_a_program_of_torch(example: str, says: str) -> None:
    pytest.importorskip("torch")

    def start(command: list[str], variables: Any) -> launch.Job:
        return launch.start(command, 2, islands="a:1,b:1", bridge="tcp", env=variables)

    said = run_task(start, run_here, (example,), init=False, timeout=120, expect={}, modules=("torch_preloaded",))
    assert says in said[0], said


def test_a_training_survives_the_loss_of_ranks_and_takes_in_another() -> None:
    command = [sys.executable, str(EXAMPLES / "train_survives.py")]
    env = {**os.environ, "SURVIVES_SECONDS": str(patient(2)), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, text=True, capture_output=True, timeout=patient(120), stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first = "[rehearsal 0 nvidia] "
    said = [line.removeprefix(first) for line in ended.stdout.splitlines() if line.startswith(first)]
    assert said[0] == "epoch 3: rank 2 (amd) was lost; 4 ranks go on from step 5", said
    assert said[1] == "epoch 5: rank 3 (ascend) was lost; 3 ranks go on from step 5", said
    assert said[2] == "epoch 7: rank 5 (amd) came; 4 ranks go on from step 6", said
    last = r"held-out accuracy 9\d\.\d\d% \(enough\); 4 ranks hold identical bits: [0-9a-f]{32}"
    assert re.fullmatch(last, said[3]) and len(said) == 4, said


@pytest.mark.parametrize("example", ["train_digits", "train_survives"])
def test_the_digits_of_scikit_learn_are_read_without_a_second_of_importing_it(example: str) -> None:
    if example == "train_digits":
        pytest.importorskip("torch")
    code = f"import sys, {example} as it; a, _, b, _ = it.data(); print(len(a), len(b), 'sklearn' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, text=True, capture_output=True, timeout=patient(60))
    assert ended.stdout.split() == ["1348", "449", "False"], ended.stdout + ended.stderr


def test_a_program_of_mpi() -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not mpirun:
        pytest.skip("no mpirun")
    pytest.importorskip("mpi4py")
    command = [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "2", sys.executable, str(EXAMPLES / "from_mpi.py")]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=patient(60))
    assert ended.returncode == 0, ended.stderr
    assert "2 ranks, numbered as MPI numbers them" in ended.stdout


def test_a_program_of_c(tmp_path: Path) -> None:
    package = Path(isthmus.__file__).parent
    words = (f"-I{isthmus.get_include()}", f"-L{package}", "-listhmus", f"-Wl,-rpath,{package}")
    sums = compiled("c/all_reduce.c", tmp_path / "all_reduce", *words)
    assert started(sums, 4, islands="a:2,b:2", bridge="tcp") == "4 ranks: the sum is 10, the average of the sums 10\n"
    messages = compiled("c/messages.c", tmp_path / "messages", *words)
    assert started(messages, 3) == "3 ranks: every rank has a message of every rank\n"


def test_an_unmodified_program_of_nccl_runs_as_one_island_and_as_two(tmp_path: Path) -> None:
    """With NVIDIA's own headers, against the simulated libraries: bare, and behind the front door in two islands."""
    if not (HEADERS / "nccl.h").is_file():
        reason = "no vendor's headers in build/vendor-headers: scripts/vendor_headers.py fetches them"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    libraries = rehearse.folder() / "nvidia"
    link = (f"-L{libraries}", "-l:libnccl.so.2", "-l:libcuda.so.1", "-Wl,--unresolved-symbols=ignore-in-shared-libs")
    program = compiled("nccl/all_reduce.c", tmp_path / "all_reduce", "-isystem", HEADERS, *link)
    for fleet, before in (("nvidia:2", []), ("nvidia:1@a,nvidia:1@b", [sys.executable, "-m", "isthmus", "run", "--"])):
        words = [*before, str(program), str(tmp_path / f"id{len(before)}")]
        with rehearse.start(words, fleet, switches={"QUIET": "1"}) as job:
            ended = job.wait(patient(60))
        assert [end.returncode for end in ended] == [0, 0], ended
        assert [f"rank {rank} of 2: the sum is 3" in end.stdout for rank, end in enumerate(ended)] == [True, True]


def test_no_example_is_forgotten() -> None:
    here = Path(__file__).read_text()
    programs = [path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".c")]
    assert [str(p) for p in programs if f'"{p}"' not in here and f"/{p}" not in here and p.name not in ELSEWHERE] == []
