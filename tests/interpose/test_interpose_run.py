"""`isthmus run`: which door and which way it takes, and that it becomes the program."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import packages
from doors import DOORS, HERE, ROOT, Door, compile_c, run, said
from isthmus import _doors, _interpose, _programs
from isthmus._doors import AUDITOR, FOLDER, HOOK
from isthmus._doors import DOORS as PACKAGED
from isthmus._errors import ArgumentError
from patience import SOON
from test_interpose_exports import symbols
from test_interpose_real import none_installed  # noqa: F401

pytestmark = pytest.mark.computes

COMMAND = (sys.executable, "-m", "isthmus", "run", "--interpose")
PYTHON_PATH = str(FOLDER.parents[1])
QUIET = {"REHEARSAL_QUIET": "1", "REHEARSAL_DEVICES": "2"}


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """Which one a test is about."""
    return DOORS[request.param]


@pytest.fixture(params=["nccl", "rccl"])
def nccl_like(request: pytest.FixtureRequest) -> Door:
    """Those whose functions have the same names, so that another's door would take them."""
    return DOORS[request.param]


def isthmus(*words: str | Path, folder: Path | None = None, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:{PYTHON_PATH}" if folder else PYTHON_PATH
    return run(*COMMAND, *words, **{"PYTHONPATH": path, **environment})


def variables(*words: str | Path, folder: Path | None = None, **environment: str | Path) -> dict[str, str]:
    """What it would set."""
    ended = isthmus("--print", *words, folder=folder, **environment)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return dict(line.split("=", 1) for line in ended.stdout.splitlines() if not line.startswith("#"))


def refusal(*words: str | Path, folder: Path | None = None, **environment: str | Path) -> str:
    """Why it starts nothing: one line."""
    ended = isthmus(*words, folder=folder, **environment)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stdout + ended.stderr
    assert ended.stderr.startswith("isthmus run: ") and ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.removeprefix("isthmus run: ").strip()


def path_of(door: Door) -> Path:
    return PACKAGED[door.library].path


# ---- it becomes the program ----------------------------------------------------------------------------------------------


def test_the_program_is_behind_its_vendors_door_and_one_line_says_so(door: Door, clients: dict[str, Path]) -> None:
    ended = isthmus("--", clients[door.library], "show", LD_LIBRARY_PATH=door.simulated)
    assert f"answered by {path_of(door)}\n" in ended.stdout and f"loaded {door.real}\n" in ended.stdout
    assert ended.stderr == (
        f"isthmus run: {door.library.upper()}'s front door (the program uses {door.soname}): LD_PRELOAD={path_of(door)}\n"
    )


def test_the_word_interpose_may_be_left_out(door: Door, clients: dict[str, Path]) -> None:
    words = ("--", clients[door.library], "show")
    short, long = (
        run(*(word for word in COMMAND if word not in left), *words, PYTHONPATH=PYTHON_PATH, LD_LIBRARY_PATH=door.simulated)
        for left in (["--interpose"], [])
    )
    assert f"answered by {path_of(door)}\n" in short.stdout
    assert (short.returncode, short.stdout, short.stderr) == (0, long.stdout, long.stderr)


def test_a_program_of_isthmus_needs_no_door(own_program: Path, tmp_path: Path, fake: Callable[..., Path]) -> None:
    """Though the library that it is linked against opens those of all vendors, and one of them is here."""
    path = fake()
    text = refusal("--", own_program, LD_LIBRARY_PATH=path.parent)
    assert "is a program of Isthmus" in text and "start it as it is" in text
    given = variables("--vendor", "nccl", "--", own_program, LD_LIBRARY_PATH=path.parent)
    assert given == {"LD_PRELOAD": str(PACKAGED["nccl"].path)}


def test_a_job_gets_what_the_bare_library_gives(door: Door, clients: dict[str, Path]) -> None:
    bare = said(clients[door.library], LD_LIBRARY_PATH=door.simulated, **QUIET)
    ended = isthmus("--", clients[door.library], LD_LIBRARY_PATH=door.simulated, **QUIET)
    assert (ended.returncode, ended.stdout) == (0, bare)


def test_its_exit_status_arguments_and_environment_are_the_programs(door: Door) -> None:
    script = 'printf "%s|" "$@"; env | grep -c -e ^LD_ -e ^ISTHMUS_; exit 7'
    ended = isthmus("--vendor", door.library, "--", "sh", "-c", script, "sh", "a b", "--print", "")
    assert (ended.returncode, ended.stdout) == (7, "a b|--print||1\n")


def test_a_signal_reaches_the_program_which_has_the_process(door: Door) -> None:
    script = "echo $$; exec sleep 60"
    command = [*COMMAND, "--vendor", door.library, "--", "sh", "-c", script]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == -signal.SIGTERM


def test_printing_starts_nothing(door: Door, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for word in ("--print", "--dry-run"):
        ended = isthmus(word, "--vendor", door.library, "--", "touch", mark)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"LD_PRELOAD={path_of(door)}\n", "")
    assert not mark.exists()


def test_children_of_a_shell_are_behind_the_door(door: Door, clients: dict[str, Path]) -> None:
    script = f"'{clients[door.library]}' show | grep answered"
    ended = isthmus("--vendor", door.library, "--", "sh", "-c", script, LD_LIBRARY_PATH=door.simulated)
    assert ended.stdout == f"answered by {path_of(door)}\n"


# ---- which door ----------------------------------------------------------------------------------------------------------


def test_the_wrong_vendors_door_is_refused(nccl_like: Door, clients: dict[str, Path]) -> None:
    door = nccl_like
    other = "rccl" if door.library == "nccl" else "nccl"
    client = clients[door.library]
    text = refusal("--vendor", other, "--", client, "show", LD_LIBRARY_PATH=door.simulated)
    assert f"{client} uses {door.library.upper()} ({door.soname})" in text and f"--vendor {door.library}" in text
    text = refusal("--", client, "show", LD_LIBRARY_PATH=door.simulated, ISTHMUS_INTERPOSE=other)
    assert "would take its calls" in text


def test_there_is_one_door_a_process(door: Door, clients: dict[str, Path]) -> None:
    other = PACKAGED["rccl" if door.library == "nccl" else "nccl"].path
    client = clients[door.library]
    text = refusal("--", client, LD_LIBRARY_PATH=door.simulated, LD_PRELOAD=other)
    assert text == f"LD_PRELOAD has a front door already, {other}: one a process"
    again = variables("--", client, LD_LIBRARY_PATH=door.simulated, LD_PRELOAD=path_of(door))
    assert again == {"LD_PRELOAD": str(path_of(door))}


def test_a_program_of_two_vendors_is_asked_about(fake: Callable[..., Path], tmp_path: Path) -> None:
    program = tmp_path / "program"
    source = tmp_path / "program.c"
    source.write_text("int ncclGetVersion(int *);\nint main(void) { int v; return ncclGetVersion(&v); }\n")
    libraries = [fake("libnccl.so.2", "one"), fake("librccl.so.1", "two")]
    compile_c(source, "-o", program, "-Wl,--no-as-needed", *libraries, *(f"-Wl,-rpath,{x.parent}" for x in libraries))
    text = refusal("--", program)
    assert "more than one vendor's library is in use" in text and "--vendor" in text
    assert variables("--vendor", "rccl", "--", program) == {"LD_PRELOAD": str(PACKAGED["rccl"].path)}


@pytest.mark.usefixtures("none_installed")
def test_a_program_for_either_vendor_gets_the_door_of_what_is_installed(door: Door, tmp_path: Path) -> None:
    program, source = tmp_path / "either", tmp_path / "either.c"
    source.write_text(
        '#include <dlfcn.h>\nint main(void) { return dlopen("libnccl.so.2", 1) || dlopen("librccl.so.1", 1) || '
        'dlopen("libhccl.so", 1) ? 0 : 1; }\n'
    )
    compile_c(source, "-o", program, "-ldl")
    given = variables("--", program, LD_LIBRARY_PATH=door.simulated)
    assert given == {"LD_PRELOAD": str(path_of(door))}
    both = f"{DOORS['nccl'].simulated}:{DOORS['rccl'].simulated}"
    assert "the program uses libnccl.so.2, the program uses librccl.so.1" in refusal("--", program, LD_LIBRARY_PATH=both)


@pytest.mark.product(6)
@pytest.mark.usefixtures("none_installed")
def test_a_program_that_tells_nothing_gets_the_door_of_what_is_installed(door: Door, tmp_path: Path) -> None:
    assert variables("--", "sh", LD_LIBRARY_PATH=door.simulated)["LD_PRELOAD"] == str(path_of(door))
    text = refusal("--", "sh")
    assert text.startswith("nothing here uses a vendor's library, and none of libnccl.so.2, ")
    assert text.endswith("; say which with --vendor")
    for launcher in ("mpirun", "torchrun"):
        script = tmp_path / launcher
        script.write_text("#!/bin/sh\nexec sh\n")
        script.chmod(0o755)
        told = refusal("--", script, "-n", "2", "sh")
        between = " --no-python" if launcher == "torchrun" else ""
        assert f"stand behind {launcher}" in told and f"{launcher}{between} ... isthmus run -- " in told, told
    both = f"{DOORS['nccl'].simulated}:{DOORS['rccl'].simulated}"
    text = refusal("--", "sh", LD_LIBRARY_PATH=both)
    assert text.startswith("more than one vendor's library is installed (NCCL in ")


def test_python_packages_say_whose_door(tmp_path: Path) -> None:
    """Of the interpreter that the program names; here of scripts that begin with it, too."""
    nvidia, amd = tmp_path / "nvidia's", tmp_path / "amd's"
    packages.nvidia(nvidia)
    packages.torch(nvidia)
    packages.torch_for_amd(amd)
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\nimport torch; print(torch.answered())\n")
    script.chmod(0o755)
    ended = isthmus("--", script, folder=nvidia)
    assert (ended.stdout, ended.returncode) == (f"22703 {PACKAGED['nccl'].path}\n", 0), ended.stderr
    ended = isthmus("--", sys.executable, script, folder=amd)
    assert ended.stdout == f"22203 {PACKAGED['rccl'].path}\n", ended.stderr
    text = refusal("--vendor", "nccl", "--", sys.executable, script, folder=amd)
    assert "libtorch_hip.so uses RCCL" in text


def test_torch_for_ascend_says_whose_door(tmp_path: Path) -> None:
    packages.torch_npu(tmp_path)
    words = (sys.executable, "-c", "import torch_npu; print(torch_npu.answered())")
    door = DOORS["hccl"]
    ended = isthmus("--", *words, folder=tmp_path, LD_LIBRARY_PATH=door.simulated)
    assert ended.stdout == f"{door.gives} {path_of(door)}\n" and "torch_npu uses libhccl.so" in ended.stderr, ended.stderr


def test_a_script_that_finds_the_interpreter_is_python(tmp_path: Path) -> None:
    packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    ended = isthmus("--", shim, "-c", "import torch; print(torch.answered())", folder=tmp_path)
    assert ended.stdout == f"22703 {PACKAGED['nccl'].path}\n", ended.stderr


def test_a_python_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert refusal("--", broken, "train.py") == f"{broken}: does not say where its packages are (sys.path)"


def test_a_library_that_is_inside_of_another_has_no_door(tmp_path: Path) -> None:
    path = packages.torch_with_nccl_inside(tmp_path)
    text = refusal("--", sys.executable, "-c", "0", folder=tmp_path)
    assert text == f"{path} has NCCL inside: a front door would take its calls and not find it"


def test_a_program_that_needs_more_than_the_door_has_is_refused(fake: Callable[..., Path], tmp_path: Path) -> None:
    """It would not start: "undefined symbol"."""
    source, library, program = tmp_path / "new.c", tmp_path / "libnccl.so.2", tmp_path / "program"
    source.write_text("int ncclOfTomorrow(void);\nint ncclOfTomorrow(void) { return 0; }\n")
    compile_c("-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", source, "-o", library)
    source.write_text("int ncclOfTomorrow(void);\nint main(void) { return ncclOfTomorrow(); }\n")
    compile_c(source, "-o", program, library, f"-Wl,-rpath,{tmp_path}", "-Wl,-z,now")
    assert f"{program} needs ncclOfTomorrow, newer than the front door" in refusal("--", program)
    assert "ncclOfTomorrow" in run(program, LD_PRELOAD=PACKAGED["nccl"].path).stderr, "what would have been"


# ---- which way -----------------------------------------------------------------------------------------------------------


def test_a_program_with_an_rpath_is_preloaded_for(door: Door, fake: Callable[..., Path], tmp_path: Path) -> None:
    program, real = tmp_path / "program", fake(door.soname)
    words = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/fake"]
    source = tmp_path / "main.c"
    source.write_text(
        '#include "plugin.c"\n#include <stdio.h>\nint main(void) { printf("%d %s\\n", number(), whose()); return 0; }\n'
    )
    compile_c(f"-I{HERE}", *door.plugin[:-1], source, "-o", program, real, *words, "-ldl")
    assert isthmus("--", program).stdout == f"{door.fakes} {path_of(door)}\n"
    assert isthmus("--audit", "--", program).stdout == f"{door.fakes} {path_of(door)}\n"


@pytest.fixture
def by_path(fake: Callable[..., Path], tmp_path: Path) -> Path:
    """A program that opens NCCL by a path that it was built with."""
    program = tmp_path / "by_path"
    compile_c("-DPROGRAM", f'-DASKS_FOR="{fake()}"', HERE / "by_name.c", "-o", program, "-ldl")
    return program


def test_a_program_that_opens_it_by_its_path_gets_the_hook(by_path: Path, fake: Callable[..., Path]) -> None:
    """Its door forwards to what the program asked for."""
    door = PACKAGED["nccl"].path
    ended = isthmus("--", by_path)
    assert ended.stdout == f"21903 {door}\n" and f"LD_PRELOAD={door}:{HOOK}; " in ended.stderr, ended.stderr
    assert isthmus("--no-hook", "--", by_path).stdout == f"21903 {fake()}\n"
    assert isthmus("--audit", "--real", fake(), "--", by_path).stdout == f"21903 {door}\n"
    assert variables("--no-hook", "--", by_path) == {"LD_PRELOAD": str(door)}
    assert variables("--audit", "--", by_path) == {"LD_AUDIT": str(AUDITOR)}
    assert "the auditor is asked about every path" in refusal("--audit", "--hook", "--", by_path)


def test_the_hook_on_request(door: Door, clients: dict[str, Path]) -> None:
    given = variables("--hook", "--", clients[door.library], LD_LIBRARY_PATH=door.simulated)
    assert given == {"LD_PRELOAD": f"{path_of(door)}:{HOOK}"}


def test_what_is_preloaded_already_stays_and_a_sanitizer_stays_first(door: Door, clients: dict[str, Path]) -> None:
    preloaded = "/opt/libtcmalloc.so.4:/usr/lib/libasan.so.8"
    given = isthmus("--print", "--vendor", door.library, "--", "sh", LD_PRELOAD=preloaded).stdout
    assert given == f"LD_PRELOAD=/usr/lib/libasan.so.8:{path_of(door)}:/opt/libtcmalloc.so.4\n"


def test_vllm_is_told_the_doors_path_and_the_door_what_vllm_was_told(tmp_path: Path) -> None:
    real = packages.nvidia(tmp_path)
    packages.torch(tmp_path)
    packages.vllm(tmp_path)
    words = ("--", sys.executable, "serve.py")
    door = str(PACKAGED["nccl"].path)
    given = variables(*words, folder=tmp_path)
    assert given == {"LD_PRELOAD": door, "VLLM_NCCL_SO_PATH": door}
    given = variables(*words, folder=tmp_path, VLLM_NCCL_SO_PATH=real)
    assert given == {"LD_PRELOAD": door, "VLLM_NCCL_SO_PATH": door, "ISTHMUS_REAL_NCCL": str(real)}
    given = variables(*words, folder=tmp_path, VLLM_NCCL_SO_PATH=door)
    assert given == {"LD_PRELOAD": door, "VLLM_NCCL_SO_PATH": door}


def test_jax_which_is_not_linked_is_told_where_its_library_is(tmp_path: Path) -> None:
    """Its plug-in's packages are another environment's than those that the door looks at."""
    real = packages.nvidia(tmp_path)
    path = packages.jax(tmp_path)
    program = f"import ctypes; l = ctypes.CDLL({str(path)!r}); print(l.number())"
    ended = isthmus("--", sys.executable, "-c", program, folder=tmp_path)
    assert ended.stdout == "22703\n" and f"ISTHMUS_REAL_NCCL={real}" in ended.stderr, ended.stderr


@pytest.mark.product(6)
def test_the_real_library_that_is_named_is_looked_at_first(door: Door, tmp_path: Path, fake: Callable[..., Path]) -> None:
    other = DOORS["rccl" if door.library == "nccl" else "nccl"]
    text = tmp_path / "text.so"
    text.write_text("no library\n")
    words = ("--vendor", door.library, "--real")
    assert refusal(*words, "/nowhere", "--", "sh") == "/nowhere: No such file or directory"
    assert refusal(*words, text, "--", "sh") == f"{text} is no ELF object"
    assert refusal(*words, path_of(door), "--", "sh").endswith(f"is a front door, and no {door.library.upper()}")
    why = f"has none of {door.name}'s functions" if door.library == "hccl" else f"is {other.name}, and no {door.name}"
    assert refusal(*words, other.real, "--", "sh").endswith(why)
    assert "has none of" in refusal(*words, HOOK, "--", "sh")
    assert variables(*words, door.real, "--", "sh")[door.setting] == str(door.real)


def test_switched_off_it_says_so(door: Door) -> None:
    ended = isthmus("--vendor", door.library, "--", "true", ISTHMUS_DISABLE="1")
    assert ended.returncode == 0 and "ISTHMUS_DISABLE=1 is set: the front door only forwards" in ended.stderr


# ---- what is no program, and what no door stands before ------------------------------------------------------------------


def test_words_that_are_no_program_are_named(tmp_path: Path) -> None:
    names = ("text", "empty", "script", "cut", "foreign", "plain")
    text, empty, script, cut, foreign, plain = (tmp_path / name for name in names)
    text.write_text("hello\n")
    empty.write_bytes(b"")
    script.write_text("#!/nowhere/interpreter\n")
    cut.write_bytes(Path("/bin/sh").resolve().read_bytes()[:90])
    foreign.write_bytes(b"\x7fELF\x01\x01" + bytes(100))
    for path in (text, empty, script, cut, foreign):
        path.chmod(0o755)
    assert refusal("--") == "no program; write it after --"
    assert refusal("--", "no-such-program") == "no-such-program: there is no such program"
    assert refusal("--", tmp_path) == f"{tmp_path}: is a folder"
    plain.write_text("hello\n")
    assert refusal("--", plain) == f"{plain}: is not executable"
    assert refusal("--", text).startswith(f"{text} is no ELF object, and no script")
    assert refusal("--", empty).startswith(f"{empty} is empty")
    assert refusal("--", script) == "/nowhere/interpreter: there is no such program"
    assert refusal("--", cut).startswith(f"{cut} is cut off")
    assert refusal("--", foreign).startswith(f"{foreign} is not of a 64-bit, little-endian machine")
    ended = run(*COMMAND, "--vendor", "mpi", "--", "true", PYTHONPATH=PYTHON_PATH)
    assert ended.returncode == 2 and "invalid choice" in ended.stderr
    assert "ISTHMUS_INTERPOSE=mpi" in refusal("--", "true", ISTHMUS_INTERPOSE="mpi")


def test_a_static_program_is_refused(door: Door, tmp_path: Path) -> None:
    source, program = tmp_path / "main.c", tmp_path / "static"
    source.write_text("int main(void) { return 0; }\n")
    for words in (["-static"], ["-static-pie"]):
        compile_c(*words, source, "-o", program)
        assert refusal("--vendor", door.library, "--", program).startswith(f"{program} is linked statically")


def test_a_program_with_other_rights_is_refused(door: Door, clients: dict[str, Path]) -> None:
    """The loader takes nothing from LD_PRELOAD for it, which the real one shows."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a set-uid program of another user's")
    # Where others may go.
    program = Path("/tmp") / f"isthmus-set-uid-{os.getpid()}"
    try:
        shutil.copy(clients[door.library], program)
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
        text = refusal("--vendor", door.library, "--", program)
        assert text.startswith(f"{program} is set-uid or set-gid")
        ended = run(program, "show", LD_PRELOAD=path_of(door))
        assert ended.returncode == 127 and door.soname in ended.stderr, "the loader found neither door nor library"
    finally:
        program.unlink(missing_ok=True)


@pytest.mark.product(6)
def test_it_stands_before_the_innermost_command(door: Door, clients: dict[str, Path]) -> None:
    """Before what only starts another program on this host, that one is looked at."""
    given = {"LD_LIBRARY_PATH": door.simulated}
    for before in (["env", "A=b"], ["nice", "-n", "1"], ["timeout", "60"], ["env", "-u", "A", "nohup"]):
        assert variables("--", *before, clients[door.library], "show", **given) == {"LD_PRELOAD": str(path_of(door))}
    folder = f"LD_LIBRARY_PATH={door.simulated}"
    assert variables("--", "env", folder, clients[door.library], "show") == {"LD_PRELOAD": str(path_of(door))}
    for name in ("docker", "ssh", "sudo", "clush", "parallel-ssh"):
        assert f"{name} ... isthmus run -- PROGRAM" in refusal("--", name, "run", clients[door.library])


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("deepspeed", "--hostfile", "hosts", "train.py"), "deepspeed --no_python ... isthmus run -- python PROGRAM"),
        (("accelerate", "launch", "train.py"), "accelerate launch --no_python ... isthmus run -- python PROGRAM"),
        (("ray", "start", "--head"), "`import isthmus.interpose` as the first line of the task or actor"),
    ],
)
def test_a_launcher_that_reaches_other_hosts_is_refused_and_what_to_write_instead_is_said(
    words: tuple[str, ...], instead: str
) -> None:
    said = refusal("--", *words)
    assert said.startswith(f"{words[0]} starts processes, on other hosts too, without these variables"), said
    assert instead in said, said



def test_before_a_launcher_it_says_where_it_is_better(door: Door, tmp_path: Path) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\nexec "$@"\n')
    launcher.chmod(0o755)
    ended = isthmus("--vendor", door.library, "--", launcher, "true")
    assert ended.returncode == 0 and "mpirun ... isthmus run -- PROGRAM" in ended.stderr


def test_python_and_the_hook_know_the_same_libraries() -> None:
    source = (ROOT / "csrc" / "interpose" / "ways" / "door.cpp").read_text()
    table = source[source.index("kVendorLibraries[] =") :].split(";")[0]
    assert re.findall(r'\{"([^"]+)", "([^"]+)"\}', table) == [(d.stem, d.soname) for d in PACKAGED.values()]
    for door in DOORS.values():
        assert (PACKAGED[door.library].soname, PACKAGED[door.library].setting) == (door.soname, door.setting)
        assert symbols(path_of(door))[0] == symbols(door.path)[0], "the package has the doors that were built"


def test_the_program_has_the_signals_that_it_has_without_it(door: Door) -> None:
    """Python ignores two, and what is ignored stays so in what a process becomes: `| head` would end nothing."""
    words = ("grep", "^SigIgn", "/proc/self/status")
    assert isthmus("--vendor", door.library, "--", *words).stdout == run(*words).stdout


def test_a_door_whose_path_the_loader_would_take_apart_is_refused(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "my project"
    place.mkdir()
    shutil.copy(path_of(door), place)
    monkeypatch.setattr(_doors, "FOLDER", place)
    with pytest.raises(ArgumentError, match=r"my project.*takes LD_PRELOAD apart at blanks"):
        _interpose.choose(_programs.examine(["sh"], os.environ), door.library)


def test_a_folder_of_packages_that_cannot_be_looked_into_is_passed_over() -> None:
    """As Python does. Root may look into every folder, so it is one with a name that no file system takes."""
    words = ("--vendor", "nccl", "--", sys.executable, "train.py")
    given = variables(*words, folder=Path("/" + 300 * "x"))
    assert given["LD_PRELOAD"].startswith(str(PACKAGED["nccl"].path))
