"""The package itself: what an import needs, its types, what a call costs, and the launcher."""

from __future__ import annotations

import gc
import inspect
import itertools
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import _core, launch
from patience import SOON


def test_importing_needs_neither_numpy_nor_torch_nor_a_device() -> None:
    program = (
        "import sys\n"
        "for name in ('numpy', 'torch', 'mpi4py', 'rich'): sys.modules[name] = None\n"
        "import isthmus, array\n"
        "comm = isthmus.init(0, 1, unique_id=isthmus.unique_id())\n"
        "x = array.array('f', [2.0]); comm.all_reduce(x); assert x[0] == 2.0\n"
        "comm.destroy()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * SOON, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_public_module_is_imported_when_a_program_names_it() -> None:
    program = (
        "import sys, isthmus\n"
        "parts = 'isthmus.elastic', 'isthmus.launch', 'isthmus.torch'\n"
        "assert not [part for part in parts if part in sys.modules]\n"
        "assert isthmus.elastic.State and isthmus.launch.start and 'isthmus.torch' not in sys.modules\n"
        "try: isthmus.elastics\n"
        "except AttributeError as e: assert 'elastics' in str(e)\n"
        "else: raise SystemExit('it has any attribute')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * SOON, check=False)
    assert ended.returncode == 0, ended.stderr


def test_no_library_of_the_package_carries_what_only_a_debugger_reads() -> None:
    libraries = [path for path in Path(isthmus.__file__).parent.rglob("*.so*") if path.read_bytes()[:4] == b"\x7fELF"]
    assert {"librehearsal.so", "libnccl.so.2"} < {path.name for path in libraries}
    assert [path.name for path in libraries if b"\0.debug_info\0" in path.read_bytes()] == []


def test_the_stubs_name_what_the_module_has() -> None:
    stub = Path(_core.__file__ or "").with_name("_core.pyi")
    if not stub.exists():
        stub = Path(isthmus.__file__).with_name("_core.pyi")
    text = stub.read_text()
    comm_part = text[text.index("class Comm") : text.index("def version")]
    stubbed = set(re.findall(r"^    def (\w+)", comm_part, re.M)) - {"__init__"}
    real = {name for name in vars(_core.Comm) if not name.startswith("__") and not name.startswith("_pybind11")}
    assert stubbed == real
    functions = set(re.findall(r"^def (\w+)", text, re.M))
    assert functions == {name for name, value in vars(_core).items() if inspect.isbuiltin(value) or inspect.isroutine(value)}
    assert Path(isthmus.__file__).with_name("py.typed").exists()


def test_the_stubs_take_an_async_op_that_is_a_variable() -> None:
    text = (Path(isthmus.__file__).with_name("_core.pyi")).read_text()
    kinds = ("Literal[False] = False", "Literal[True]", "bool")
    named = [re.findall(rf"def (\w+)\([^)]*async_op: {re.escape(kind)}[,)]", text) for kind in kinds]
    assert len(named[0]) == 16 and named[0] == named[1] == [name for name in named[2] if name != "group_end"]


def test_every_public_thing_has_a_text() -> None:
    for name in isthmus.__all__:
        assert name == "ANY_SOURCE" or (getattr(isthmus, name).__doc__ or "").strip(), name
    for name in vars(_core.Comm):
        if not name.startswith("_"):
            assert (getattr(_core.Comm, name).__doc__ or "").strip(), name


def test_a_call_through_numpy_keeps_nothing() -> None:
    """What the Python face makes for a call is gone after it; how long a call takes, bench/peers.py measures."""
    with isthmus.init(0, 1, unique_id=isthmus.unique_id()) as comm:
        x = np.ones(1)
        held = []
        for _ in range(5):
            for _ in range(2_000):
                comm.all_reduce(x)
            gc.collect()
            held.append(sys.getallocatedblocks())
    # Of the whole process: what another thread makes may fall into one round, what a call keeps is in each.
    assert min(after - before for before, after in itertools.pairwise(held)) < 100, held


def test_islands_are_parsed_in_order() -> None:
    assert launch.parse_islands("a:2,b:1", 3) == ["a", "a", "b"]
    assert launch.parse_islands("a,b,a", 3) == ["a", "b", "a"]
    assert launch.parse_islands(None, 2) == [None, None]


@pytest.mark.parametrize("text", ["a:2", "a:x,b:1", ":3", "a:1,,b:1"])
def test_islands_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(isthmus.ArgumentError, match="islands="):
        launch.parse_islands(text, 3)


def test_a_launched_rank_sees_nothing_of_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK", "TORCHELASTIC_RUN_ID", "ISTHMUS_ISLAND"):
        monkeypatch.setenv(name, "9")
    env = launch.environment(1, 2, 1000, island=None, bridge="tcp", extra={"EXTRA": "1"})
    assert "OMPI_COMM_WORLD_RANK" not in env and "SLURM_PROCID" not in env and "ISTHMUS_ISLAND" not in env
    assert (env["ISTHMUS_RANK"], env["RANK"], env["ISTHMUS_BRIDGE"], env["EXTRA"]) == ("1", "1", "tcp", "1")


def test_a_port_that_another_process_was_given_is_given_to_nobody_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; from isthmus import launch; print(launch.free_port(), flush=True); sys.stdin.read()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as other:
        assert other.stdin and other.stdout
        theirs = int(other.stdout.readline())
        tried = [theirs, theirs - 1, theirs + 1]  # each port has its successor

        class Chooses(random.SystemRandom):
            def randrange(self, *bounds: int) -> int:
                return tried.pop() if tried else super().randrange(*bounds)

        monkeypatch.setattr(launch.random, "SystemRandom", Chooses)
        assert abs(launch.free_port() - theirs) > 1 and not tried
        other.stdin.close()


def test_many_ports_are_given_and_the_last_of_them_do_not_meet() -> None:
    ports = [launch.free_port() for _ in range(500)]
    assert len({port + successor for port in ports[-64:] for successor in range(2)}) == 128


def test_a_job_ends_its_ranks_at_the_deadline_and_leaves_none(tmp_path: Path) -> None:
    program = "import os, sys, time; print('up', flush=True); os.mkdir(sys.argv[1] + os.environ['RANK']); time.sleep(600)"
    up = tmp_path / "up"
    with launch.start([sys.executable, "-c", program, str(up)], 2) as job:
        begin = time.monotonic()
        while not all(Path(f"{up}{rank}").exists() for rank in range(2)):
            assert time.monotonic() - begin < SOON
            time.sleep(0.01)
        results = job.wait(0.5)
    assert [(end.returncode, end.stdout) for end in results] == [(-9, "up\n")] * 2


def test_a_new_wheel_takes_the_place_of_one_for_the_same_python_torch_and_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts"))
    import make_wheels

    def replaces(new: str, old: str) -> bool:
        return bool(make_wheels.replaces(*(Path(f"dist/isthmus-{name}.whl") for name in (new, old))))

    new = "0.2.0-2.13torch-cp312-cp312-manylinux_2_35_x86_64"
    assert replaces(new, "0.1.0-2.13torch-cp312-cp312-manylinux_2_31_x86_64")
    assert not replaces(new, "0.2.0-2.12torch-cp312-cp312-manylinux_2_35_x86_64")
    assert not replaces(new, "0.2.0-cp312-cp312-manylinux_2_35_x86_64")
    assert not replaces(new, "0.2.0-2.13torch-cp312-cp312-manylinux_2_35_aarch64")
    assert not replaces(new, "0.2.0-2.13torch-cp313-cp313-manylinux_2_35_x86_64")
