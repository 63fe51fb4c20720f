"""MPI programs, one for each vendor's library, of which mpirun makes one job. MPI carries the id to the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doors import DOORS, HERE, compile_c, linked, preloaded
from patience import patient
from spanning import HANDED, SPANS, VENDORS, environment

pytestmark = preloaded
BIN = Path(sys.executable).parent
FOUND = {name: shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}") for name in ("mpicc", "mpirun")}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if None in FOUND.values():
        pytest.skip("no MPI on this machine")
    assert FOUND["mpicc"]
    folder = tmp_path_factory.mktemp("mpi")
    made = {}
    for letter, library in VENDORS.items():
        made[letter] = folder / library
        macros = {"n": [], "a": ["-DAMD"], "h": ["-DASCEND"]}[letter]
        compile_c(*macros, HERE / "mpi_client.c", "-o", made[letter], *linked(DOORS[library]), compiler=FOUND["mpicc"])
    return made


@pytest.mark.product(8)
@pytest.mark.parametrize("vendors", ["na", "hn", "anh", "nn"])
@pytest.mark.parametrize("behind", ["the command", "LD_PRELOAD"])
def test_they_sum_over_all_of_them(vendors: str, behind: str, programs: dict[str, Path]) -> None:
    command = [FOUND["mpirun"], "--allow-run-as-root", "--oversubscribe"]
    for number, letter in enumerate(vendors):
        given = environment(letter, behind == "LD_PRELOAD")
        given |= {"ISTHMUS_LOG": "info", "REHEARSAL_DEVICES": "1"}
        changed = [f"{name}={value}" for name, value in given.items() if os.environ.get(name) != value]
        started = [sys.executable, "-m", "isthmus", "run", "--interpose", "--"] if behind == "the command" else []
        command += [":"] * (number > 0) + ["-n", "1", "env", *changed, *started, str(programs[letter])]
    ended = subprocess.run(
        [word for word in command if word],
        env={k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "LD_", "REHEARSAL_"))},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ranks = len(vendors)
    assert sorted(ended.stdout.splitlines()) == [f"rank {number} of {ranks}: right" for number in range(ranks)]
    assert ended.stderr.count(SPANS if len(set(vendors)) > 1 else HANDED) == ranks, ended.stderr
