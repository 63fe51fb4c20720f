"""How the real library is found, and what a program is told where it is missing, too old, or this library again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doors import DOORS, HERE, Door, compile_c, preloaded, run, said

# Calls by name, each given on the command line, and prints their results; of those that give a text, the text.
CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def number():
    if not hasattr(library, "ncclGetVersion"):
        return library.HcclGetCommConfigCapability()
    version = ctypes.c_int(-1)
    library.ncclGetVersion(ctypes.byref(version))
    return version.value
for name in sys.argv[2:]:
    name, _, argument = name.partition("=")
    function = number if name == "number" else getattr(library, name)
    if name == "number":
        print(function())
    elif name.endswith(("LastError", "ErrorString")):
        function.restype = ctypes.c_char_p
        print(function(int(argument or 0)).decode())
    elif name == "ncclGetVersion":
        version = ctypes.c_int(-1)
        print(function(ctypes.byref(version)), version.value)
    elif name in ("ncclCommGetUniqueId", "HcclGetCommName"):
        file = ctypes.create_string_buffer(128)
        print(function(None, file), file.value.decode())
    elif name.startswith("ncclTeam"):
        function.restype = type("Team", (ctypes.Structure,), {"_fields_": [(f, ctypes.c_int) for f in ("n", "r", "s")]})
        team = function(None)
        print(team.n, team.r, team.s)
    else:
        print(function(0, 0))
"""
SYSTEM, INTERNAL, USAGE = 2, 3, 5


def calls(library: Path, *names: str, **environment: str | Path) -> tuple[list[str], str]:
    """What the calls gave, and what was said to stderr."""
    ended = run(sys.executable, "-c", CALLS, library, *names, **environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


# Where a door looks that no test can take away, besides what the loader knows.
PLACES = ("/usr/local/nccl/lib", "/usr/local/cuda/lib64", "/opt/rocm/lib", "/opt/rocm/rccl/lib") + tuple(
    f"{root}/Ascend/{place}lib64"
    for root in ("/usr/local", Path.home())
    for place in ("cann/", "ascend-toolkit/latest/", "nnae/latest/", "latest/")
)


@pytest.fixture
def none_installed() -> None:
    """For tests of what happens where there is no real library."""
    for door in DOORS.values():
        known = run(sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", door.soname).returncode == 0
        if known or any((Path(place) / door.soname).exists() for place in PLACES):
            pytest.skip(f"this machine has a {door.soname}")


# ---- missing -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize("library", ["nccl", "rccl"])
def test_without_a_real_library_every_call_is_a_system_error_that_says_where_it_was_looked_for(library: str) -> None:
    door = DOORS[library]
    names = ["ncclGetVersion", "ncclCommAbort", "ncclGetErrorString=2", "ncclGetLastError", "ncclGetErrorString=0"]
    told, logged = calls(door.path, *names, ISTHMUS_LOG="warn")
    assert told[:2] == [f"{SYSTEM} -1", f"{SYSTEM}"]
    text = told[2]
    assert text.startswith(f"Isthmus found no {door.library.upper()} to forward to; looked at what is loaded, ")
    assert door.setting in text and door.soname in text and "its cache" in text
    assert told[3:] == [text, "no error"]
    assert logged.count("\n") == 1 and text in logged, "said once"


@pytest.mark.parametrize("library", ["nccl", "rccl"])
def test_what_has_no_way_to_tell_of_an_error_gives_what_nobody_takes_for_an_answer(library: str) -> None:
    door = DOORS[library]
    names = ["ncclTeamWorld", "ncclLLA2ACalcSlots", "ncclParamDumpAll", "ncclGetLastError"]
    told, _ = calls(door.path, *names, **{door.setting: "/nowhere"})
    assert told[:2] == ["0 -1 0", "-1"] and "Isthmus found no" in told[3]


def test_the_log_can_be_silent(door: Door) -> None:
    _, logged = calls(door.path, door.call, ISTHMUS_LOG="off", **{door.setting: "/nowhere"})
    assert logged == ""


def test_a_path_that_is_set_is_the_only_place(door: Door, tmp_path: Path) -> None:
    nothing, text_file = tmp_path / "nothing.so", tmp_path / "text.so"
    text_file.write_text("no library\n")
    for path, why in ((nothing, "no such file"), (text_file, "file too short"), (Path(door.soname), "is not a path")):
        told, _ = calls(door.path, door.call, door.why, LD_LIBRARY_PATH=door.simulated, **{door.setting: path})
        assert told[0] == str(door.absent)
        assert f"{door.setting}={path}" in told[1] and why in told[1], told[1]


@pytest.mark.usefixtures("none_installed")
def test_each_door_has_its_own_setting(door: Door) -> None:
    others = {other.setting: door.real for other in DOORS.values() if other != door}
    assert len(others) == 2
    assert calls(door.path, door.call, **others)[0] == [str(door.absent)]


# ---- found ---------------------------------------------------------------------------------------------------------------


def test_what_is_found_first_is_taken(door: Door, fake: Callable[..., Path]) -> None:
    first, second = fake(door.soname, "first", "VERSION=22100"), fake(door.soname, "second", "VERSION=22200")
    path = f"{first.parent}:{second.parent}"
    assert calls(door.path, "number", LD_LIBRARY_PATH=path)[0] == ["22100"]
    assert calls(door.path, "number", LD_LIBRARY_PATH=path, **{door.setting: second})[0] == ["22200"]


@pytest.mark.usefixtures("none_installed")
def test_a_library_of_another_kind_is_passed_by(fake: Callable[..., Path], tmp_path: Path) -> None:
    """By the loader's folders come: one that is broken, one that is no NCCL, and the right one."""
    broken = tmp_path / "broken" / "libnccl.so.2"
    broken.parent.mkdir()
    broken.write_text("no library\n")
    stranger, right = fake("libnccl.so.2", "stranger", "NOT_NCCL"), fake("libnccl.so.2", "right")
    path = f"{broken.parent}:{stranger.parent}:{right.parent}"
    assert calls(DOORS["nccl"].path, "ncclGetVersion", LD_LIBRARY_PATH=path)[0] == ["0 21903"]
    path = f"{broken.parent}:{stranger.parent}"
    told, _ = calls(DOORS["nccl"].path, "ncclGetVersion", "ncclGetLastError", LD_LIBRARY_PATH=path)
    assert told[0] == f"{SYSTEM} -1"
    assert f"{broken} (" in told[1] and f"{stranger} (has no ncclGetVersion)" in told[1]


@pytest.mark.usefixtures("none_installed")
def test_a_door_takes_neither_itself_nor_a_copy_of_itself_for_the_real_library(door: Door, tmp_path: Path) -> None:
    """By any name: another file, a link, and the path that was set."""
    copy, link = tmp_path / "copy" / door.soname, tmp_path / "link" / door.soname
    for place in (copy, link):
        place.parent.mkdir()
    shutil.copy(door.path, copy)
    link.symlink_to(door.path)
    path = f"{copy.parent}:{link.parent}:{door.path.parent}"
    told, _ = calls(door.path, door.call, door.why, LD_LIBRARY_PATH=path)
    assert told[0] == str(door.absent) and told[1].count("(is Isthmus' own)") >= 3, told[1]
    other, other_link = tmp_path / "libmy.so", tmp_path / "libmine.so.9"
    shutil.copy(door.path, other)
    other_link.symlink_to(other)
    for place in (copy, link, other, other_link):
        told, _ = calls(door.path, door.call, door.why, **{door.setting: place})
        assert told[0] == str(door.absent) and "is Isthmus' own" in told[1]
    # With a real one behind them they are passed by.
    told, _ = calls(door.path, "number", LD_PRELOAD=copy, LD_LIBRARY_PATH=f"{path}:{door.simulated}")
    assert told == [str(door.gives)]


@pytest.mark.usefixtures("none_installed")
def test_a_door_does_not_take_another_vendors_for_the_real_library(door: Door) -> None:
    """Under this vendor's name, even."""
    for other in DOORS.values():
        told, _ = calls(door.path, door.call, door.why, **{door.setting: other.path})
        assert told[0] == str(door.absent) and "is Isthmus' own" in told[1]


@pytest.mark.usefixtures("none_installed")
def test_the_package_beside_ours_is_looked_at(fake: Callable[..., Path], tmp_path: Path) -> None:
    """In the folder of Python packages, nvidia/nccl/lib stands beside isthmus."""
    packages = tmp_path / "site-packages"
    real = fake("libnccl.so.2", "site-packages/nvidia/nccl/lib", "VERSION=22304")
    ours = packages / "isthmus" / "interpose" / "libnccl.so.2"
    ours.parent.mkdir(parents=True)
    shutil.copy(DOORS["nccl"].path, ours)
    assert real.is_file()
    assert calls(ours, "ncclGetVersion")[0] == ["0 22304"]


@pytest.mark.usefixtures("none_installed")
def test_the_loaders_cache_is_looked_at(door: Door, fake: Callable[..., Path], tmp_path: Path) -> None:
    """A cache of ldconfig's own making with a folder that nothing else leads to, in a mount namespace of this test."""
    apart = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("ldconfig") is None or run(*apart, "mount", "--bind", "/etc/hostname", "/etc/ld.so.cache").returncode:
        pytest.skip("no ldconfig, or no mount namespaces for this user")
    real, cache, settings = fake(door.soname, "far", "VERSION=22001"), tmp_path / "cache", tmp_path / "ld.so.conf"
    settings.write_text(f"{real.parent}\n")
    made = run("ldconfig", "-X", "-C", cache, "-f", settings)
    assert cache.exists(), made.stderr
    script = 'mount --bind "$1" /etc/ld.so.cache && shift && LD_PRELOAD="$1" exec "$2" -c "$3" "$1" number'
    assert said(*apart, "sh", "-c", script, "sh", cache, door.path, sys.executable, CALLS) == "22001\n"


LATER = """
import ctypes, sys
library, call = ctypes.CDLL(sys.argv[1]), sys.argv[3]
print(getattr(library, call)(0, 0), getattr(library, call)(0, 0))
ctypes.CDLL(sys.argv[2])
"""


@pytest.mark.usefixtures("none_installed")
def test_a_library_that_is_loaded_later_is_found_then(door: Door, fake: Callable[..., Path]) -> None:
    program, real = f"{LATER}{door.number}print(number)\n", fake(door.soname, "fake", "VERSION=21903")
    ended = run(sys.executable, "-c", program, door.path, real, door.call, ISTHMUS_LOG="warn")
    assert ended.stdout.splitlines() == [f"{door.absent} {door.absent}", "21903"], ended.stderr
    assert ended.stderr.count(f"Isthmus found no {door.name}") == 1, "said once"


# Whether a program that looks everywhere for a name of the library's finds it: behind the door, and when the program itself
# has opened the library for everybody.
LOOKING = """
import ctypes, sys
everywhere = ctypes.CDLL(None).dlsym
everywhere.restype, everywhere.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
def found():
    return bool(everywhere(None, b"only_the_fake_has_this"))
library = ctypes.CDLL(sys.argv[1])
NUMBER
print(number, found())
ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
print(found())
"""


def test_the_names_of_the_real_library_are_not_the_whole_programs(door: Door, fake: Callable[..., Path]) -> None:
    program, real = LOOKING.replace("NUMBER", door.number), fake(door.soname)
    found = said(sys.executable, "-c", program, door.path, real, **{door.setting: real})
    assert found == f"{door.fakes} False\nTrue\n"


def test_a_library_that_lacks_a_function_is_refused_when_it_is_opened(door: Door, fake: Callable[..., Path]) -> None:
    """By the function's name, and not in the midst of a job by a call that comes to it."""
    real = fake(door.soname, "lacking", "LACKS_A_FUNCTION")
    told, _ = calls(door.path, door.call, door.why, **{door.setting: real})
    assert told[0] == str(door.absent)
    assert str(real) in told[1] and "undefined symbol: function_of_nobody" in told[1], told[1]
    lazily = "import ctypes, os, sys; print(ctypes.CDLL(None).dlopen(sys.argv[1].encode(), os.RTLD_LAZY) != 0)"
    assert said(sys.executable, "-c", lazily, real) == "True\n", "nothing but that is wrong with it"


# ---- Isthmus' own communicators, in a program that was started behind a door --------------------------------------------

FOUND = """
import ctypes, json, sys
found = ctypes.c_char_p()
assert ctypes.CDLL(sys.argv[1]).isthmus_libraries(ctypes.byref(found)) == 0
print([e["path"] or e["text"] for e in json.loads(found.value) if e["family"] == sys.argv[2]][0])
"""


def found_by_isthmus(door: Door, **environment: str | Path) -> str:
    library = DOORS["nccl"].path.parents[1] / "csrc" / "api" / "libisthmus.so"
    return said(sys.executable, "-c", FOUND, library, door.library, LD_LIBRARY_PATH=door.simulated, **environment).strip()


@preloaded
def test_isthmus_itself_finds_the_real_library_behind_a_door(door: Door) -> None:
    """By the SONAME the loader would give the door."""
    assert found_by_isthmus(door, LD_PRELOAD=door.path) == str(door.real)


@preloaded
def test_isthmus_itself_finds_a_real_library_that_is_called_something_else(door: Door, tmp_path: Path) -> None:
    """The setting of the door may name any file."""
    real = tmp_path / "libmy.so"
    shutil.copy(door.real, real)
    (tmp_path / "librehearsal.so").symlink_to(door.simulated.parent / "librehearsal.so")
    assert found_by_isthmus(door, LD_PRELOAD=door.path, **{door.setting: real}) == str(real)


@preloaded
def test_isthmus_itself_knows_a_door_by_any_name(door: Door, tmp_path: Path) -> None:
    """One that it is told to take for the vendor's library leads it to that."""
    copy, link = tmp_path / "libmy.so", tmp_path / "libmine.so.9"
    shutil.copy(door.path, copy)
    link.symlink_to(door.path)
    for name in (copy, link):
        told = {"ISTHMUS_CCL": door.library, "ISTHMUS_CCL_LIBRARY": name}
        assert found_by_isthmus(door, **told) == str(door.real)
        # Two of them in one process: neither takes the other for the real library.
        assert found_by_isthmus(door, LD_PRELOAD=door.path, **told) == str(door.real)


# ---- too old -------------------------------------------------------------------------------------------------------------


def test_a_function_that_the_real_library_lacks_is_invalid_usage_with_its_name_and_the_version_found(
    fake: Callable[..., Path],
) -> None:
    real = fake()
    names = [
        "ncclCommShrink",
        "ncclGetLastError",
        "ncclGetErrorString=5",
        "ncclTeamLsa",
        "ncclGetLastError",
        "ncclCommShrink",
    ]
    told, logged = calls(DOORS["nccl"].path, *names, "ncclGetLastError", ISTHMUS_REAL_NCCL=real)
    text = f"ncclCommShrink: the real library has no such function; it is NCCL 2.19.3 in {real}"
    assert told[:3] == [str(USAGE), text, "invalid usage, says the fake"]
    assert told[3:5] == ["0 -1 0", text.replace("ncclCommShrink", "ncclTeamLsa")]
    assert told[5:] == [str(USAGE), text]
    assert logged.count(text) == 1 and logged.count("\n") == 2, "once for each function"


def test_the_last_error_is_the_real_librarys_where_that_is_newer(fake: Callable[..., Path]) -> None:
    names = [
        "ncclGetLastError",
        "ncclCommShrink",
        "ncclGroupStart",
        "ncclGetLastError",
        "ncclCommShrink",
        "ncclGetLastError",
    ]
    told, _ = calls(DOORS["nccl"].path, *names, ISTHMUS_REAL_NCCL=fake())
    assert told[:4] == ["", str(USAGE), str(INTERNAL), "a group failed"]
    assert told[4] == str(USAGE) and told[5].startswith("ncclCommShrink: the real library has no such function")


def test_switched_off_it_adds_no_word(fake: Callable[..., Path]) -> None:
    real = fake()
    names = ["ncclCommShrink", "ncclGetLastError", "ncclGroupStart", "ncclGetLastError"]
    environment = {"ISTHMUS_REAL_NCCL": real, "ISTHMUS_LOG": "trace"}
    told, logged = calls(DOORS["nccl"].path, *names, ISTHMUS_DISABLE="1", **environment)
    assert told == [str(USAGE), "", str(INTERNAL), "a group failed"] and logged == ""
    told, logged = calls(DOORS["nccl"].path, *names, ISTHMUS_DISABLE="0", **environment)
    assert "no such function" in told[1] and logged.count("\n") == 2


# ---- re-entry ------------------------------------------------------------------------------------------------------------


def test_a_call_of_the_real_library_to_a_function_of_its_own_does_not_come_back(
    door: Door, fake: Callable[..., Path]
) -> None:
    real = fake(door.soname)
    told, _ = calls(door.path, door.own, LD_PRELOAD=door.path, **{door.setting: real})
    assert told == [f"0 {real}"]
    # What would happen without: the same library, opened by the program itself behind a preloaded door.
    told, _ = calls(real, door.own, LD_PRELOAD=door.path)
    assert told == [f"0 {door.path}"]


def test_a_call_from_a_library_that_is_being_opened_neither_hangs_nor_opens_it_again(
    door: Door, fake: Callable[..., Path]
) -> None:
    real = fake(door.soname, "fake", "CALLS_WHILE_LOADED", "VERSION=21903")
    told, logged = calls(door.path, "number", LD_PRELOAD=door.path, **{door.setting: real})
    assert told == ["21903"]
    assert logged == f"while loaded: {door.early}\n"


def test_a_function_that_the_real_library_has_only_through_the_door_is_none_of_its_own(tmp_path: Path) -> None:
    """What the real library needs may itself be linked against a library of that name, and so against the door."""
    door, helper, real = DOORS["nccl"], tmp_path / "helper.so", tmp_path / "libnccl.so.2"
    empty = tmp_path / "empty.c"
    empty.write_text("extern int help; int help = 1;\n")
    linked = ("-shared", "-fPIC", "-Wl,--no-as-needed")
    compile_c(*linked, empty, "-o", helper, door.path)
    compile_c(*linked, "-Wl,-soname,libnccl.so.2", HERE / "fake.c", "-o", real, helper, "-ldl")
    environment = {"LD_PRELOAD": door.path, "ISTHMUS_REAL_NCCL": real}
    told, _ = calls(door.path, "ncclGetVersion", "ncclCommAbort", "ncclGetLastError", **environment)
    assert told[:2] == ["0 21903", str(USAGE)] and "no such function" in told[2]


@pytest.fixture
def allocator(tmp_path: Path) -> Path:
    """Another malloc, behind which the real library is opened without RTLD_DEEPBIND."""
    source, made = tmp_path / "malloc.c", tmp_path / "malloc.so"
    source.write_text("void *__libc_malloc(unsigned long);\nvoid *malloc(unsigned long n) { return __libc_malloc(n); }\n")
    compile_c("-shared", "-fPIC", "-fno-builtin", source, "-o", made)
    return made


def test_behind_another_malloc_the_real_library_frees_with_it(
    door: Door, fake: Callable[..., Path], allocator: Path
) -> None:
    """So it is bound to the whole process, and its own calls come to the door, which hands them back."""
    real = fake(door.soname, "fake", "VERSION=21903")
    told, _ = calls(door.path, door.own, "number", LD_PRELOAD=f"{door.path}:{allocator}", **{door.setting: real})
    assert told == [f"0 {door.path}", "21903"]


# A program whose library calls public functions of its own, which come to the door (fake.c). DOOR REAL RUNTIME. What follows
# this leaves `answer`.
CALLING = """
import ctypes, json, struct, sys
library, runtime = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[3], mode=ctypes.RTLD_GLOBAL)
library.ncclGetLastError.restype = ctypes.c_char_p
MAKES_AN_ID, BEGINS, ENDS, SIMULATES = 1, 2, 3, 4  # as fake.c numbers them
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
if hasattr(runtime, "cuInit"):
    context = ctypes.c_void_p()
    assert runtime.cuInit(0) == 0 and runtime.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert runtime.cuCtxSetCurrent(context) == 0
def well(code):
    assert code == 0, (code, library.ncclGetLastError(None))
def unique_id():
    one = Id()
    well(library.ncclGetUniqueId(ctypes.byref(one)))
    return one
def routed(what):
    well(library.ncclCommInitAll(ctypes.byref(ctypes.c_void_p()), what, None))
config = ctypes.create_string_buffer(struct.pack("=QIIi", 20, 0xcafebeef, 21400, 1), 20)
def init(comm):
    well(library.ncclCommInitRankConfig(ctypes.byref(comm), 1, unique_id(), 0, config))
def kept(kind, name):
    return kind.in_dll(ctypes.CDLL(sys.argv[2]), name)
"""
INNER_ID = """
outer = unique_id()
routed(MAKES_AN_ID)
answer = [bytes(outer).hex(), bytes(kept(Id, "inner_id")).hex()]
"""
# After each step, how many communicators the library was asked for, and whether the program has a handle of the library's.
INNER_GROUPS = """
answer, one, other = [], ctypes.c_void_p(), ctypes.c_void_p()
def note(comm):
    answer.append([kept(ctypes.c_int, "configs").value, comm.value == 77])
routed(BEGINS)
init(one)
note(one)
well(library.ncclGroupStart())
init(other)
for what in (SIMULATES, ENDS):
    routed(what)
    note(other)
well(library.ncclGroupEnd())
note(other)
"""


def calling(door: Door, fake: Callable[..., Path], allocator: Path, program: str) -> Any:
    """What it found, its library's calls having come to the door."""
    real = fake(door.soname, "calling", "KEEPS_CONFIGS", "CALLS_BY_NAME")
    told = 'print(json.dumps([kept(ctypes.c_char * 128, "inner_file").value.decode(), answer]))'
    words = (sys.executable, "-c", f"{CALLING}{program}{told}\n", door.path, real, door.simulated / door.runtime)
    settings = {door.setting: real, "ISTHMUS_INTERFACE": "lo", "ISTHMUS_TIMEOUT": "20", "REHEARSAL_QUIET": "1"}
    ended = run(*words, LD_PRELOAD=f"{door.path}:{allocator}", LD_LIBRARY_PATH=door.simulated, **settings)
    assert ended.returncode == 0, ended.stderr
    answered, answer = json.loads(ended.stdout)
    assert answered == str(door.path)
    return answer


@pytest.mark.parametrize("vendor", ["nccl", "rccl"])
def test_an_id_that_the_real_library_makes_for_itself_has_nothing_of_isthmus(
    vendor: str, fake: Callable[..., Path], allocator: Path
) -> None:
    """In a call of the program's that the door took: no meeting is made for it. The program's own has one."""
    outer, inner = map(bytes.fromhex, calling(DOORS[vendor], fake, allocator, INNER_ID))
    assert outer[:48] == b"\x01" + bytes(47) and outer[48:].startswith(b"Isthmus")
    assert inner == b"\x02" + bytes(127)


@pytest.mark.parametrize("vendor", ["nccl", "rccl"])
def test_groups_that_the_real_library_begins_and_ends_for_itself_are_none_of_the_programs(
    vendor: str, fake: Callable[..., Path], allocator: Path
) -> None:
    """Of each the other half is inside of the library: behind the first the program is in no group, and those that end
    neither end its group nor forget what is in it.
    """
    told = calling(DOORS[vendor], fake, allocator, INNER_GROUPS)
    assert told == [[1, True], [1, False], [1, False], [2, True]]


def test_a_door_can_be_used_from_where_a_program_has_gone(door: Door, tmp_path: Path) -> None:
    """LD_PRELOAD with a relative path, and a program that changes its folder before its first call."""
    program = "import os, sys\nos.chdir('/')\n" + CALLS
    words = ["sh", "-c", f"cd '{door.path.parent}' && LD_PRELOAD=./{door.soname} exec \"$@\"", "sh"]
    path = f"{door.path.parent}:{door.simulated}"
    assert said(*words, sys.executable, "-c", program, door.soname, "number", LD_LIBRARY_PATH=path) == f"{door.gives}\n"
