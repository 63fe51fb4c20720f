"""Programs that know nothing of Isthmus, with a front door between them and the library that they were made for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doors import BUILD, DOORS, HERE, Door, client, compile_c, linked, run, said

QUIET = {"REHEARSAL_QUIET": "1", "REHEARSAL_DEVICES": "2"}


def by_name(door: Door) -> str:
    """How vLLM and others come to the library, with ctypes: which file answers, and its number."""
    return (
        f"import ctypes, sys\nlibrary = ctypes.CDLL(sys.argv[1])\n{door.number}print(number)\n"
        'print("".join(line for line in open("/proc/self/maps") if "r-xp" in line and "ccl.so" in line))\n'
    )


def real_and_ours(door: Door, text: str) -> tuple[bool, bool]:
    return str(door.real) in text, str(door.path) in text


def test_a_program_gets_what_the_bare_library_gives(door: Door, clients: dict[str, Path]) -> None:
    bare = said(clients[door.library], LD_LIBRARY_PATH=door.simulated, **QUIET)
    assert bare.count("\n") > 25 and "rank 1 all_reduce: 1000 1198 4.39261e+06\n" in bare
    behind = said(clients[door.library], LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated, **QUIET)
    assert behind == bare
    switched_off = said(
        clients[door.library], LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated, ISTHMUS_DISABLE="1", **QUIET
    )
    assert switched_off == bare


def test_the_real_library_sees_the_same_calls(door: Door, clients: dict[str, Path], tmp_path: Path) -> None:
    def calls(name: str, **environment: str | Path) -> dict[str, int]:
        trace = tmp_path / name
        said(clients[door.library], LD_LIBRARY_PATH=door.simulated, REHEARSAL_TRACE=trace, **QUIET, **environment)
        record = json.loads(trace.read_text())
        assert record["misuses"] == 0
        # How often a program asks whether a communicator is ready is a matter of time.
        return {call: times for call, times in record["calls"].items() if call != "ncclCommGetAsyncError"}

    bare = calls("bare")
    asked, late = {}, {}
    if door.library == "hccl":
        assert bare["HcclCommInitRootInfoConfig"] == 2 and bare["HcclAllReduce"] == 9 and bare["HcclBatchSendRecv"] == 2
    else:
        assert bare["ncclCommInitRankConfig"] == 2 and bare["ncclAllReduce"] == 7
        inits = bare[
            "ncclCommInitRankConfig"
        ]  # they do not block: a thread of the door's own makes them, on the caller's device
        ask, enter, more = {
            "nccl": ("cuCtxGetCurrent", "cuCtxSetCurrent", {"cuCtxGetDevice": inits}),
            "rccl": ("hipGetDevice", "hipSetDevice", {}),
        }[door.library]
        asked = {
            "ncclGetVersion": bare["ncclGetVersion"] + 1,  # what the door asks once for itself, when it opens the library
            ask: 2 * inits,
            enter: bare[enter] + 2 * inits,
            **more,
        }
        late = {enter: range(bare[enter] + inits, bare[enter] + 2 * inits)}  # the thread leaves the device when all is told
    behind = calls("behind", LD_PRELOAD=door.path)
    for call, fewer in late.items():
        behind[call] = asked[call] if behind[call] in fewer else behind[call]
    assert behind == bare | asked
    assert calls("switched off", LD_PRELOAD=door.path, ISTHMUS_DISABLE="1") == bare


@pytest.mark.parametrize("other", ["nccl", "rccl"])
def test_the_door_of_hccl_stands_beside_another(clients: dict[str, Path], other: str) -> None:
    """Each takes the calls of its own vendor's library."""
    hccl, beside = DOORS["hccl"], DOORS[other]
    for door in (hccl, beside):
        bare = said(clients[door.library], LD_LIBRARY_PATH=door.simulated, **QUIET)
        preload = f"{beside.path}:{hccl.path}"
        assert said(clients[door.library], LD_PRELOAD=preload, LD_LIBRARY_PATH=door.simulated, **QUIET) == bare


def test_preloaded_for_a_program_that_is_linked(door: Door, clients: dict[str, Path]) -> None:
    text = said(clients[door.library], "show", LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated)
    assert f"answered by {door.path}\n" in text and f"loaded {door.real}\n" in text


def test_the_librarys_folder_first_for_a_program_that_is_linked(door: Door, clients: dict[str, Path]) -> None:
    """LD_LIBRARY_PATH serves programs without an RPATH. The door finds itself there too, and goes on."""
    path = f"{door.path.parent}:{door.simulated}"
    text = said(clients[door.library], "show", LD_LIBRARY_PATH=path)
    assert f"answered by {door.path}\n" in text and f"loaded {door.real}\n" in text


@pytest.mark.parametrize("tag", ["RPATH", "RUNPATH"])
def test_a_program_that_knows_the_folder(door: Door, tag: str, tmp_path: Path) -> None:
    """RPATH, as PyTorch's wheels have it, goes before LD_LIBRARY_PATH, and RUNPATH behind it. LD_PRELOAD goes before both.

    The door finds the real library by either.
    """
    program = tmp_path / "linked"
    dtags = "--disable-new-dtags" if tag == "RPATH" else "--enable-new-dtags"
    compile_c(*client(door), "-o", program, *linked(door), f"-Wl,{dtags}", f"-Wl,-rpath,{door.simulated}")
    first = door.real if tag == "RPATH" else door.path
    assert f"answered by {first}\n" in said(program, "show", LD_LIBRARY_PATH=door.path.parent)
    text = said(program, "show", LD_PRELOAD=door.path)
    assert f"answered by {door.path}\n" in text and f"loaded {door.real}\n" in text


def test_preloaded_for_a_program_that_opens_the_library_by_name(door: Door) -> None:
    text = said(sys.executable, "-c", by_name(door), door.soname, LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated)
    assert real_and_ours(door, text) == (True, True)


def test_named_to_a_program_that_takes_a_path(door: Door) -> None:
    """VLLM_NCCL_SO_PATH and the like: no variable of the loader's."""
    text = said(sys.executable, "-c", by_name(door), door.path, **{door.setting: door.real})
    assert real_and_ours(door, text) == (True, True)


def test_opened_before_the_library_that_needs_it(door: Door, tmp_path: Path) -> None:
    """The loader takes what has the SONAME already, so no variable is needed from Python."""
    plugin = tmp_path / "plugin.so"
    ascend = ["-DASCEND"] if door.library == "hccl" else []
    compile_c(*ascend, "-shared", "-fPIC", HERE / "plugin.c", "-o", plugin, door.real, "-Wl,--allow-shlib-undefined")
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "plugin = ctypes.CDLL(sys.argv[2])\n"
        "plugin.whose.restype = ctypes.c_char_p\n"
        "print(plugin.number(), plugin.whose().decode())\n"
    )
    text = said(sys.executable, "-c", program, door.path, plugin, LD_LIBRARY_PATH=door.simulated)
    number, answered_by = text.split()
    assert int(number) == door.gives and answered_by == str(door.path)


def test_a_library_that_the_program_has_loaded_already_is_the_real_one(door: Door, fake: Callable[..., Path]) -> None:
    """PyTorch loads its NCCL by its path before the first call; another one in the loader's folders is not taken."""
    loaded = fake(door.soname, "loaded", "VERSION=22807")
    program = "import ctypes, sys\nctypes.CDLL(sys.argv[2])\n" + by_name(door)
    text = said(sys.executable, "-c", program, door.soname, loaded, LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated)
    assert text.startswith("22807\n") and real_and_ours(door, text) == (False, True)


def test_a_program_that_opens_the_real_library_by_its_path_passes_by(door: Door) -> None:
    """Not reached by LD_PRELOAD, as docs/howto/run-nccl-programs.md says: no call goes to the door, so it opens nothing."""
    ended = run(sys.executable, "-c", by_name(door), door.real, LD_PRELOAD=door.path, ISTHMUS_LOG="info")
    assert ended.returncode == 0 and ended.stderr == ""


def test_a_child_of_a_program_inherits_the_door(door: Door, clients: dict[str, Path]) -> None:
    """By exec, through a shell that is no user of the library."""
    command = f"'{clients[door.library]}' show | grep answered"
    text = said("sh", "-c", command, LD_PRELOAD=door.path, LD_LIBRARY_PATH=door.simulated)
    assert text == f"answered by {door.path}\n"


def test_a_forked_child_goes_on(door: Door) -> None:
    program = (
        "import ctypes, os, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        f"library.{door.text_of_success}.restype = ctypes.c_char_p\n"
        f"before = library.{door.text_of_success}(0) if sys.argv[2] == 'called' else b'no error'\n"
        "child = os.fork()\n"
        f"if child == 0: os._exit(0 if library.{door.text_of_success}(0) == b'no error' else 1)\n"
        "print(before.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    for when in ("called", "not called"):
        assert said(sys.executable, "-c", program, door.path, when, **{door.setting: door.real}) == "no error 0\n"


def test_many_threads_may_make_the_first_call(door: Door) -> None:
    program = (
        "import ctypes, sys, threading\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "gate, got = threading.Barrier(16), []\n"
        "def call():\n"
        "    gate.wait()\n" + "".join(f"    {line}\n" for line in door.number.splitlines()) + "    got.append(number)\n"
        "threads = [threading.Thread(target=call) for _ in range(16)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "print(set(got), len(got))\n"
    )
    ended = run(sys.executable, "-c", program, door.path, ISTHMUS_LOG="info", **{door.setting: door.real})
    assert ended.stdout == f"{{{door.gives}}} 16\n", ended.stderr
    assert ended.stderr.count("\n") == 1, "opened once, and said once"


@pytest.mark.parametrize("level", ["info", "warn"])
def test_the_log_says_which_library_it_is(door: Door, level: str) -> None:
    ended = run(sys.executable, "-c", by_name(door), door.path, ISTHMUS_LOG=level, **{door.setting: door.real})
    line = f"interpose: {door.name} {'in' if door.library == 'hccl' else '2.'}"
    assert (line in ended.stderr and f" in {door.real}\n" in ended.stderr) == (level == "info")


BENCH = BUILD / "bench" / "interpose" / "interpose_bench"
built = pytest.mark.skipif(
    not BENCH.exists() and not os.environ.get("CI"), reason="no interpose_bench: it is of a build with tests"
)
NO_LIMIT = "1e15"  # nanoseconds


def row_names() -> list[str]:
    """Of the benchmark of a call, for each number of communicators."""
    calls = ["AllReduce", "Broadcast", "ReduceScatter", "AllGather", "Send", "Recv", "CommCount", "CommUserRank"]
    names = []
    for kind in ("own", "alias"):
        names += [f"nccl{call} {kind}" for call in (*calls, "CommGetAsyncError")]
        names += [f"group of 16 ncclAllReduce {kind}"]
    alone = ["Version", "ErrorString"]
    names += ["ncclGroupStart+End", *(f"ncclGet{what}" for what in alone), "ncclCommDestroy own", "ncclCommInitRank"]
    hccl = ["AllReduce", "ReduceScatter", "AllGather", "Broadcast", "Send", "Recv", "GetRankSize", "GetRankId"]
    hccl += ["GetCommAsyncError", "GroupStart+End", "AllReduceGraphMode", "CommDestroy", "CommInitRootInfo"]
    return [*names, *(f"Hccl{call}" for call in hccl), "group of 16 HcclAllReduce"]


@built
def test_the_benchmark_of_a_call_has_each_row_for_each_number_of_communicators() -> None:
    """What a door adds to a call are nanoseconds, and no limit is for a machine that does other things meanwhile."""
    lines = said(BENCH, "--quick", "--communicators", "1,3", "--limit", NO_LIMIT).splitlines()
    rows = [(line[:32].strip(), int(line[32:].split()[0])) for line in lines if not line.startswith("#")]
    assert sorted(rows) == sorted((name, number) for number in (1, 3) for name in row_names())


@built
def test_the_benchmark_fails_and_names_the_rows_where_a_door_is_slower_than_its_limit(tmp_path: Path) -> None:
    """The door is slow on purpose: each all_reduce waits for 2 us of the clock, on any machine."""
    door, slow = DOORS["nccl"], tmp_path / "libslow.so"
    compile_c("-shared", "-fPIC", HERE / "slow_door.c", door.path, f"-Wl,-rpath,{door.path.parent}", "-o", slow)
    words = (BENCH, "--quick", "--communicators", "1", "--door", slow)
    assert run(*words, "--limit", NO_LIMIT).returncode == 0
    ended = run(*words, "--limit", "1000")
    assert ended.returncode == 1, ended.stdout
    for name in ("ncclAllReduce own", "ncclAllReduce alias", "group of 16 ncclAllReduce own"):
        assert f"{name}, 1 communicators: " in ended.stderr and "over the limit of 1000\n" in ended.stderr, ended.stderr


@built
@pytest.mark.everything
def test_a_door_adds_no_more_than_50_ns_to_a_call_with_1000_communicators_too() -> None:
    """Of `make test-all` alone: here the clock decides."""
    ended = run(BENCH, "--limit", "50", seconds=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    none = run(BENCH, "--limit", "0", "--communicators", "16", seconds=300)
    assert none.returncode == 1 and "ncclGroupStart+End, 16 communicators: " in none.stderr, none.stdout + none.stderr
