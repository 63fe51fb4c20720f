"""`isthmus doctor --program`: what it says of a program's calls is what the loader then does with them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import packages
from doors import DOORS, HERE, Door, compile_c, run
from isthmus import _elf, _loader
from isthmus._doors import AUDITOR, FOLDER, HOOK, read
from isthmus._doors import DOORS as PACKAGED
from test_interpose_real import none_installed  # noqa: F401

pytestmark = pytest.mark.computes

PYTHON_PATH = str(FOLDER.parents[1])
SAYS = '#include "plugin.c"\n#include <stdio.h>\nint main(void) { printf("%d %s\\n", number(), whose()); return 0; }\n'


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """Which one a test is about."""
    return DOORS[request.param]


def doctor(*words: str | Path, folder: Path | None = None, status: int = 0, **environment: str | Path) -> dict[str, Any]:
    path = f"{folder}:{PYTHON_PATH}" if folder else PYTHON_PATH
    command = (sys.executable, "-m", "isthmus", "doctor", "--json", "--program", *words)
    ended = run(*command, **{"PYTHONPATH": path, **environment})
    assert ended.returncode == status, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def made(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The users that a test has made. pyhccl is installed beside Isthmus."""
    return [user for user in report["users"] if user["user"] != "pyhccl"]


def variables_of(way: str, door: Path, environment: dict[str, str | Path]) -> dict[str, str | Path]:
    """The ways of docs/howto/run-nccl-programs.md."""
    searched = f"{FOLDER}:{environment.get('LD_LIBRARY_PATH', '')}"
    return {
        "now": environment,
        "preload": {**environment, "LD_PRELOAD": door},
        "hook": {**environment, "LD_PRELOAD": f"{door}:{HOOK}"},
        "library_path": {**environment, "LD_LIBRARY_PATH": searched},
        "audit": {**environment, "LD_AUDIT": AUDITOR},
    }[way]


def check(report: dict[str, Any], program: Path, door: Path, **environment: str | Path) -> dict[str, bool]:
    """Runs the program, which prints who answers it, in each of the ways; returns which ones lead to the door."""
    (user,) = report["users"]
    found = {}
    for way, leads in user["ways"].items():
        answered = run(program, **variables_of(way, door, environment)).stdout.split()[1]
        assert (answered == str(door)) == leads, f"{way}: doctor says {leads}, and {answered} answers"
        if way == "now":
            assert answered == user["binds"]
        found[way] = leads
    return found


# ---- what it says is what happens ----------------------------------------------------------------------------------------


@pytest.mark.product(6)
@pytest.mark.parametrize("tag", ["RPATH", "RUNPATH", "neither"])
def test_of_a_linked_program(door: Door, tag: str, fake: Callable[..., Path], tmp_path: Path) -> None:
    source, program, real = tmp_path / "main.c", tmp_path / "program", fake(door.soname)
    source.write_text(SAYS)
    dtags = "--disable-new-dtags" if tag == "RPATH" else "--enable-new-dtags"
    words = [] if tag == "neither" else [f"-Wl,{dtags}", "-Wl,-rpath,$ORIGIN/fake"]
    environment = {"LD_LIBRARY_PATH": str(real.parent)} if tag == "neither" else {}
    compile_c(f"-I{HERE}", *door.plugin[:-1], source, "-o", program, real, *words, "-ldl")
    report = doctor(program, **environment)
    path = PACKAGED[door.library].path
    leads = check(report, program, path, **environment)
    assert leads == {"now": False, "preload": True, "hook": True, "library_path": tag != "RPATH", "audit": True}
    (user,) = report["users"]
    assert (user["how"], user["library"], user["symbols"]) == ("linked", door.library, {door.asks: str(real)})
    assert report["choice"]["variables"] == {"LD_PRELOAD": str(path)}


@pytest.mark.product(6)
@pytest.mark.parametrize("tag", ["RPATH", "RUNPATH"])
def test_of_a_program_whose_library_is_linked(door: Door, tag: str, fake: Callable[..., Path], tmp_path: Path) -> None:
    """The program's RPATH serves what its libraries need, and its RUNPATH does not."""
    source, program, library, real = tmp_path / "main.c", tmp_path / "program", tmp_path / "libmine.so", fake(door.soname)
    source.write_text(SAYS.replace('#include "plugin.c"', "int number(void);\nconst char *whose(void);"))
    compile_c("-shared", "-fPIC", *door.plugin, "-o", library, real)
    dtags = "--disable-new-dtags" if tag == "RPATH" else "--enable-new-dtags"
    folders = [f"-Wl,{dtags}", "-Wl,-rpath,$ORIGIN:$ORIGIN/fake", "-Wl,--allow-shlib-undefined"]
    compile_c(source, "-o", program, library, *folders)
    environment = {} if tag == "RPATH" else {"LD_LIBRARY_PATH": str(real.parent)}
    leads = check(doctor(program, **environment), program, PACKAGED[door.library].path, **environment)
    assert leads["library_path"] == (tag == "RUNPATH") and leads["preload"]
    if tag == "RUNPATH":
        (user,) = doctor(program)["users"]
        assert user["binds"] is None and run(program).returncode == 127, "without a folder the loader finds nothing"


@pytest.mark.parametrize("text", ["name", "path"])
def test_of_a_program_that_opens_the_library(text: str, fake: Callable[..., Path], tmp_path: Path) -> None:
    program, real = tmp_path / "program", fake()
    asks_for = real.name if text == "name" else str(real)
    compile_c("-DPROGRAM", f'-DASKS_FOR="{asks_for}"', HERE / "by_name.c", "-o", program, "-ldl")
    environment = {"LD_LIBRARY_PATH": str(real.parent)}
    report = doctor(program, **environment)
    leads = check(report, program, PACKAGED["nccl"].path, **environment)
    by_name = text == "name"
    assert leads == {"now": False, "preload": by_name, "hook": True, "library_path": by_name, "audit": True}
    assert (report["users"][0]["how"], report["users"][0]["text"]) == (text, asks_for)


def test_of_a_program_that_is_behind_a_door(door: Door, clients: dict[str, Path]) -> None:
    path = PACKAGED[door.library].path
    report = doctor(clients[door.library], "show", LD_LIBRARY_PATH=door.simulated, LD_PRELOAD=path)
    (user,) = report["users"]
    assert user["binds"] == str(path) and user["ways"]["now"] and set(user["symbols"].values()) == {str(path)}


def test_the_loaders_rules_find_what_the_loader_finds(clients: dict[str, Path], door: Door) -> None:
    """For programs that are here anyway: every file that ld.so --list names, and no other."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(door.simulated)}
    for program in (Path(sys.executable).resolve(), clients[door.library], Path("/bin/sh").resolve()):
        listed = run(_elf.read(program).interpreter, "--list", program, LD_LIBRARY_PATH=door.simulated).stdout
        theirs = {os.path.realpath(line.split("=>")[1].split()[0]) for line in listed.splitlines() if "=> /" in line}
        process = _loader.Process(read(program), environment, read)
        ours = {os.path.realpath(loaded.elf.path) for loaded in process.objects[1:]}
        loaders = os.path.realpath(_elf.read(program).interpreter)
        assert ours - {loaders} == theirs - {loaders} and len(ours) > 0 and process.missing == []


# ---- Python --------------------------------------------------------------------------------------------------------------


def test_of_torch(tmp_path: Path) -> None:
    """Its RPATH goes before LD_LIBRARY_PATH. As it is shown by test_interpose_import and test_interpose_run."""
    real, library = packages.nvidia(tmp_path), packages.torch(tmp_path)
    report = doctor(sys.executable, "train.py", folder=tmp_path)
    (user,) = made(report)
    assert (user["user"], user["file"], user["how"], user["binds"]) == ("torch", str(library), "linked", str(real))
    ways = {"now": False, "preload": True, "hook": True, "import": True, "library_path": False, "audit": True}
    assert user["ways"] == ways and report["program"]["kind"] == "Python"
    assert report["choice"]["why"] == "torch uses libnccl.so.2"
    real_of = {row["library"]: row["real"] for row in report["doors"]}
    assert real_of["nccl"] == str(real)


def test_of_torch_for_amd(tmp_path: Path) -> None:
    """It needs its library by a name to which the door does not answer; but the door's functions come first."""
    library = packages.torch_for_amd(tmp_path)
    (user,) = made(doctor(sys.executable, "train.py", folder=tmp_path))
    assert (user["library"], user["binds"]) == ("rccl", str(library.with_name("librccl.so")))
    assert user["ways"]["preload"] and user["ways"]["import"] and not user["ways"]["library_path"]


def test_of_torch_for_ascend(tmp_path: Path) -> None:
    """It has no RPATH, so that the folder of the doors may go first, too."""
    library, door = packages.torch_npu(tmp_path), DOORS["hccl"]
    report = doctor(sys.executable, "train.py", folder=tmp_path, LD_LIBRARY_PATH=str(door.simulated))
    (user,) = made(report)
    assert (user["user"], user["file"], user["how"], user["binds"]) == ("torch_npu", str(library), "linked", str(door.real))
    ways = {"now": False, "preload": True, "hook": True, "import": True, "library_path": True, "audit": True}
    assert user["ways"] == ways and report["choice"]["why"] == "torch_npu uses libhccl.so"


def test_of_cupy_jax_and_vllm_in_one_environment(tmp_path: Path) -> None:
    real = packages.nvidia(tmp_path)
    packages.cupy(tmp_path)
    packages.jax(tmp_path, "/usr/local/cuda/lib64/libnccl.so.2")
    packages.vllm(tmp_path)
    users = {user["user"]: user for user in made(doctor(sys.executable, "serve.py", folder=tmp_path))}
    assert {name: user["how"] for name, user in users.items()} == {"cupy": "linked", "jax": "path", "vllm": "name"}
    assert users["vllm"]["ways"]["variable"] and users["vllm"]["ways"]["preload"]
    assert users["cupy"]["binds"] == str(real), "CuPy loads it by its path, since its own file leads nowhere"
    assert users["cupy"]["ways"]["preload"] and not users["cupy"]["ways"]["library_path"]


def test_of_jax_which_puts_the_librarys_name_together(tmp_path: Path) -> None:
    real, plugin = packages.nvidia(tmp_path), packages.jax(tmp_path)
    (user,) = made(doctor(sys.executable, "train.py", folder=tmp_path))
    assert (user["user"], user["file"], user["how"], user["text"]) == ("jax", str(plugin), "name", "libnccl.so.2")
    assert user["binds"] == str(real), "by its RPATH"
    assert user["ways"]["preload"] and user["ways"]["import"] and not user["ways"]["library_path"]


EVERY_WAY = {"preload", "hook", "library_path", "audit", "import", "variable"}


@pytest.mark.product(4)
@pytest.mark.parametrize(
    ("told", "how", "leading"),
    [
        ({}, "name", EVERY_WAY),
        ({"PYHCCL_LIBRARY": "{}/libhccl.so"}, "path", {"hook", "audit", "variable"}),
        ({"PYHCCL_LIBRARY_PATH": "{}"}, "path", {"hook", "audit", "variable"}),
        (
            {"PYHCCL_LIBRARY": "/nowhere/libhccl.so"},
            "name",
            {"preload", "hook", "library_path", "audit", "import", "variable"},
        ),
    ],
    ids=["by its name", "by a path", "in a folder", "by a path that is none"],
)
def test_of_pyhccl(told: dict[str, str], how: str, leading: set[str]) -> None:
    """As it is in its wheel. A door says what it found at the first call; where calls pass by, nobody says anything."""
    pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")
    door, calls = PACKAGED["hccl"].path, "import pyhccl\nassert pyhccl.HcclGetErrorString(0)\n"
    given = {name: value.format(DOORS["hccl"].simulated) for name, value in told.items()}
    environment: dict[str, str | Path] = {"LD_LIBRARY_PATH": str(DOORS["hccl"].simulated), **given}
    report = doctor(sys.executable, "train.py", **environment)
    (user,) = [user for user in report["users"] if user["user"] == "pyhccl"]
    assert (user["library"], user["how"], user["binds"]) == ("hccl", how, str(DOORS["hccl"].real))
    assert {way for way, leads in user["ways"].items() if leads} == leading and not user["ways"]["now"]
    for way, leads in user["ways"].items():
        if way in ("import", "variable"):
            more = environment | ({"PYHCCL_LIBRARY": door} if way == "variable" else {})
        else:
            more = variables_of(way, door, environment)
        text = ("import isthmus.interpose\n" if way == "import" else "") + calls
        ended = run(sys.executable, "-c", text, PYTHONPATH=PYTHON_PATH, ISTHMUS_LOG="info", **more)
        assert ended.returncode == 0, f"{way}: {ended.stderr}"
        assert ("interpose: HCCL in" in ended.stderr) == leads, f"{way}: doctor says {leads}: {ended.stderr}"
    command = (sys.executable, "-m", "isthmus", "run", "--interpose", "--", sys.executable, "-c", calls)
    ended = run(*command, PYTHONPATH=PYTHON_PATH, ISTHMUS_LOG="info", **environment)
    assert ended.returncode == 0 and f"interpose: HCCL in {DOORS['hccl'].simulated}/" in ended.stderr, ended.stderr


@pytest.mark.usefixtures("none_installed")
def test_pyhccl_without_hccl_says_nothing_of_whose_door() -> None:
    """It is listed, and the door is that of the library which is there."""
    pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")
    report = doctor(sys.executable, "train.py", LD_LIBRARY_PATH=str(DOORS["nccl"].simulated))
    (user,) = [user for user in report["users"] if user["user"] == "pyhccl"]
    assert user["binds"] is None and user["text"] == "libhccl.so"
    assert report["choice"]["library"] == "nccl" and "is installed" in report["choice"]["why"]


def test_of_a_library_that_is_inside_of_torch(tmp_path: Path) -> None:
    path = packages.torch_with_nccl_inside(tmp_path)
    report = doctor(sys.executable, "train.py", folder=tmp_path, status=1)
    (user,) = made(report)
    assert user["how"] == "inside" and not any(user["ways"].values()) and report["choice"] is None
    assert report["error"].startswith(f"{path} has NCCL inside")


# ---- what cannot be ------------------------------------------------------------------------------------------------------


def test_of_a_static_program(tmp_path: Path) -> None:
    source, program = tmp_path / "main.c", tmp_path / "program"
    source.write_text("int main(void) { return 0; }\n")
    compile_c("-static", source, "-o", program)
    report = doctor(program, status=1)
    assert report["program"]["kind"] == "static" and "linked statically" in report["program"]["unreachable"]
    assert report["choice"] is None and report["users"] == []


@pytest.mark.usefixtures("none_installed")
def test_of_a_program_that_uses_none() -> None:
    report = doctor("sh", status=1)
    assert report["users"] == [] and report["error"].startswith("nothing here uses a vendor's library")


@pytest.mark.parametrize("words", [["/nowhere/program"], []])
def test_words_that_are_no_program_are_an_error(words: list[str]) -> None:
    ended = run(sys.executable, "-m", "isthmus", "doctor", "--program", *words, PYTHONPATH=PYTHON_PATH)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("isthmus doctor: ") and "Traceback" not in ended.stderr


def test_objects_that_are_broken_are_an_error_and_no_surprise(tmp_path: Path, clients: dict[str, Path]) -> None:
    """A program cut off at every 97th byte of its tables, and with each of them overwritten."""
    whole = clients["nccl"].read_bytes()
    path = tmp_path / "broken"
    begin = _elf.read(clients["nccl"])
    assert begin.needed
    for end in [*range(0, 4096, 97), *range(4096, len(whole), 997)]:
        for data in (whole[:end], whole[:end] + b"\xff" * 64 + whole[end + 64 :]):
            path.write_bytes(data)
            try:
                _elf.read(path, (b"nccl",))
            except _elf.NotElf:
                pass


def test_the_text_names_library_ways_and_command(door: Door, clients: dict[str, Path]) -> None:
    command = (sys.executable, "-m", "isthmus", "doctor", "--program", clients[door.library], "show")
    ended = run(*command, PYTHONPATH=PYTHON_PATH, LD_LIBRARY_PATH=door.simulated)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    (user,) = doctor(clients[door.library], "show", LD_LIBRARY_PATH=door.simulated)["users"]
    assert len(user["symbols"]) > 20
    assert f"  now                       {len(user['symbols'])} functions → {door.real}" in lines
    assert "  LD_PRELOAD                leads to the front door" in lines
    assert f"→ isthmus run -- {clients[door.library]} show" in lines
    assert f"  LD_PRELOAD={PACKAGED[door.library].path}" in lines


def test_a_program_of_isthmus_is_no_client_of_all_vendors(own_program: Path, fake: Callable[..., Path]) -> None:
    """The library that serves its islands opens the vendors' libraries, and is nobody's client."""
    report = doctor(own_program, LD_LIBRARY_PATH=fake().parent)
    assert report["program"]["own"] and not report["users"] and not report["choice"]
    assert "needs no front door" in report["error"]
    ended = run(sys.executable, "-m", "isthmus", "doctor", "--program", own_program, PYTHONPATH=PYTHON_PATH)
    assert ended.returncode == 0 and "more than one vendor" not in ended.stdout and "no front door:" not in ended.stdout
    assert "it is a program of Isthmus" in ended.stdout


def test_a_program_of_isthmus_that_calls_a_vendors_library_too_is_its_client(
    door: Door, fake: Callable[..., Path], tmp_path: Path
) -> None:
    source, program, real = tmp_path / "main.c", tmp_path / "program", fake(door.soname)
    source.write_text(SAYS)
    library = next(FOLDER.parent.glob("libisthmus.so.*"))
    compile_c(f"-I{HERE}", *door.plugin[:-1], source, "-o", program, real, "-Wl,--no-as-needed", library, "-ldl")
    environment = {"LD_LIBRARY_PATH": f"{real.parent}:{library.parent}"}
    report = doctor(program, **environment)
    assert report["program"]["own"] and [user["library"] for user in report["users"]] == [door.library]
    assert report["choice"]["library"] == door.library
