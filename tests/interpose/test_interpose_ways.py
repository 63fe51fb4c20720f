"""The ways to a door that LD_PRELOAD of the door does not give: the hook before dlopen, and the loader's auditor."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doors import BUILD, DOORS, HERE, ROOT, Door, client, compile_c, run, said
from test_interpose_calls import CROSS, QEMU
from test_interpose_exports import dynamic, symbols
from test_interpose_real import none_installed  # noqa: F401

pytestmark = pytest.mark.computes

HOOK = BUILD / "interpose" / "libisthmus_dlopen.so"
AUDITOR = BUILD / "interpose" / "libisthmus_audit.so"
WAYS = {"hook": ("LD_PRELOAD", HOOK), "auditor": ("LD_AUDIT", AUDITOR)}
SOURCES = ROOT / "csrc" / "interpose"
NCCL = DOORS["nccl"]
# What opener.c prints where a door has no library: HCCL's function gives no code.
NOTHING = {"nccl": "gives 2, -1", "rccl": "gives 2, -1", "hccl": "gives 0, -1"}


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """Which one a test is about."""
    return DOORS[request.param]


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, Path]:
    """The variable of either way. Only one of them: the door itself is not preloaded."""
    name, path = WAYS[request.param]
    return {name: path}


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("opener") / "opener"
    compile_c("-O2", HERE / "opener.c", "-o", path, "-ldl")
    return path


def answers(door: Door, opener: Path, *names: str | Path, **environment: str | Path) -> list[str]:
    return said(opener, door.asks, *names, **environment).splitlines()


# ---- which files ---------------------------------------------------------------------------------------------------------


def test_the_vendors_library_by_its_path_is_the_door(
    door: Door, opener: Path, way: dict[str, Path], fake: Callable[..., Path]
) -> None:
    """Under each name that the vendors give it; the door forwards to the real library."""
    real = fake(door.soname)
    stem = door.soname.partition(".so")[0]
    names = [real]
    for name in (f"{stem}.so", f"{stem}.so.9.99.9"):
        if name != real.name:
            names.append(real.with_name(name))
            names[-1].symlink_to(real)
    assert answers(door, opener, *names, **{door.setting: real}, **way) == [f"{door.path} {door.says(door.fakes)}"] * len(
        names
    )
    assert answers(door, opener, *names) == [f"{name} {door.says(door.fakes)}" for name in names[:1]] * len(names), (
        "what it would be without"
    )


def test_a_file_of_another_name_is_known_by_its_soname(
    door: Door, opener: Path, way: dict[str, Path], fake: Callable[..., Path], tmp_path: Path
) -> None:
    real = fake(door.soname)
    link, copy = tmp_path / "collectives.so", tmp_path / "copy"
    link.symlink_to(real)
    shutil.copy(real, copy)
    assert answers(door, opener, link, copy, **{door.setting: real}, **way) == [f"{door.path} {door.says(door.fakes)}"] * 2


def test_other_files_are_opened_as_they_are(opener: Path, way: dict[str, Path], fake: Callable[..., Path]) -> None:
    """Names that only begin alike, a plug-in of the vendor's, text, no SONAME, half a header."""
    sonames = ("libnccl-net.so", "libncclx.so.2", "libnccl.so_old", "libmine.so")
    files = [fake(name, name.replace(".", "")) for name in sonames]
    text, cut, bare = (files[0].parent / name for name in ("text.so", "cut.so", "bare.so"))
    text.write_text("no library\n")
    cut.write_bytes(files[0].read_bytes()[:64])
    compile_c("-shared", "-fPIC", HERE / "fake.c", "-o", bare, "-ldl")
    told = answers(NCCL, opener, *files, bare, text, cut, **way)
    assert told[:5] == [f"{file} gives 0, 21903" for file in (*files, bare)]
    assert told[5] == f"not opened: {text}: file too short" and told[6].startswith("not opened: ")


def test_a_path_where_nothing_is_stays_an_error(door: Door, opener: Path, way: dict[str, Path]) -> None:
    """A program that looks in one folder after the other goes on to the next."""
    (told,) = answers(door, opener, f"/nowhere/{door.soname}", **way)
    assert told == f"not opened: /nowhere/{door.soname}: cannot open shared object file: No such file or directory"


def test_the_library_by_its_name_is_the_door(door: Door, opener: Path, way: dict[str, Path]) -> None:
    told = answers(door, opener, door.soname, LD_LIBRARY_PATH=door.simulated, **way)
    assert told[0].startswith(f"{door.path} {door.says(door.gives)}")


def test_whether_it_is_loaded_is_asked_of_the_door(door: Door, opener: Path) -> None:
    names = [f"noload:{door.real}", str(door.real), f"noload:{door.real}"]
    told = answers(door, opener, *names, LD_PRELOAD=HOOK)
    assert told[0] == "not opened: no reason"
    assert told[1] == told[2] and told[1].startswith(f"{door.path} {door.says(door.gives)}")


def test_where_there_is_no_door_the_file_is_opened(
    opener: Path, way: dict[str, Path], fake: Callable[..., Path], tmp_path: Path
) -> None:
    """A folder with one door: the library of another vendor is that vendor's, until there is a door for it."""
    ((variable, library),) = way.items()
    folder = tmp_path / "folder"
    folder.mkdir()
    mine = Path(shutil.copy(library, folder))
    real = tmp_path / "libhccl.so.9"
    shutil.copy(fake("libany.so"), real)
    assert answers(NCCL, opener, real, **{variable: mine}) == [f"{real} gives 0, 21903"]
    shutil.copy(fake("libother.so", "other", "VERSION=1"), folder / "libhccl.so")
    assert answers(NCCL, opener, real, **{variable: mine}) == [f"{folder / 'libhccl.so'} gives 0, 1"]


# ---- whom it serves ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("none_installed")
def test_without_a_setting_the_door_takes_the_file_that_the_program_asked_for(
    door: Door, opener: Path, fake: Callable[..., Path]
) -> None:
    """The first one: a program has one library behind a door. Nothing else leads to that file."""
    first, second = fake(door.soname, "first", "VERSION=22101"), fake(door.soname, "second", "VERSION=22102")
    told = answers(door, opener, first, second, LD_PRELOAD=HOOK)
    assert told == [f"{door.path} {door.says(22101)}"] * 2
    told = answers(door, opener, door.path, second, LD_PRELOAD=HOOK, ISTHMUS_LOG="off")
    assert told == [f"{door.path} {NOTHING[door.library]}", f"{door.path} {door.says(22102)}"], (
        "a door is no library to forward to"
    )


def test_libisthmus_gets_the_vendors_library(door: Door, opener: Path, tmp_path: Path) -> None:
    """It opens the library that serves its islands, by the path that it is told."""
    ours = tmp_path / "libisthmus.so.0.1", tmp_path / "libisthmus.so"
    others = tmp_path / "libother.so", tmp_path / "libisthmus.sorry"
    for path in (*ours, *others):
        compile_c("-O2", "-DLIBRARY", "-shared", "-fPIC", HERE / "opener.c", "-o", path, "-ldl")
    program = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.open_from_here.restype = ctypes.c_void_p\n"
        "library.open_from_here.argtypes = [ctypes.c_char_p]\n"
        "assert library.open_from_here(sys.argv[2].encode())\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(sys.argv[2] in maps, sys.argv[3] in maps)\n"
    )
    told = [said(sys.executable, "-c", program, path, door.real, door.path, LD_PRELOAD=HOOK) for path in (*ours, *others)]
    assert told == ["True False\n"] * 2 + ["False True\n"] * 2


def test_switched_off_nothing_is_changed(door: Door, opener: Path, way: dict[str, Path]) -> None:
    names = [str(door.real), door.soname]
    off = answers(door, opener, *names, LD_LIBRARY_PATH=door.simulated, ISTHMUS_DISABLE="1", ISTHMUS_LOG="trace", **way)
    assert off == answers(door, opener, *names, LD_LIBRARY_PATH=door.simulated)
    assert off[0].startswith(f"{door.real} {door.says(door.gives)}")


def test_the_log_says_what_was_given_for_what(door: Door, opener: Path, way: dict[str, Path]) -> None:
    ended = run(opener, door.asks, door.real, ISTHMUS_LOG="info", **way)
    line = f"interpose: {door.real} was asked for, and {door.path} is given\n"
    assert ended.stderr.count(line) == 1 and ended.stderr.count("\n") == 2, ended.stderr


@pytest.mark.parametrize("tag", ["RPATH", "RUNPATH"])
def test_the_callers_own_folders_still_count(opener: Path, tag: str, tmp_path: Path) -> None:
    """A library opens a plug-in by its bare name, which its $ORIGIN alone leads to.

    The test of the test: behind a hook that calls the C library's function instead of jumping to it, nothing is found.
    """
    (tmp_path / "plugins").mkdir()
    compile_c("-shared", "-fPIC", HERE / "fake.c", "-o", tmp_path / "plugins" / "libplugin.so", "-ldl")
    dtags = "--disable-new-dtags" if tag == "RPATH" else "--enable-new-dtags"
    library = tmp_path / "library.so"
    linked = [f"-Wl,{dtags}", "-Wl,-rpath,$ORIGIN/plugins", "-ldl"]
    compile_c("-O2", "-DLIBRARY", "-shared", "-fPIC", HERE / "opener.c", "-o", library, *linked)
    program = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.open_from_here.restype = ctypes.c_void_p\n"
        "print(bool(library.open_from_here(b'libplugin.so')))\n"
    )
    command = (sys.executable, "-c", program, library)
    assert said(*command) == said(*command, LD_PRELOAD=HOOK) == said(*command, LD_AUDIT=AUDITOR) == "True\n"
    calling = tmp_path / "calling.c"
    calling.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nstatic void *volatile handle;\n"
        "void *dlopen(const char *file, int mode) {\n"
        "  handle = ((void *(*)(const char *, int))dlsym(RTLD_NEXT, __func__))(file, mode);\n  return handle;\n}\n"
    )
    compile_c("-shared", "-fPIC", calling, "-o", tmp_path / "calling.so", "-ldl")
    assert said(*command, LD_PRELOAD=tmp_path / "calling.so") == "False\n"


def test_in_a_namespace_of_its_own_the_hook_gives_the_door_and_the_auditor_is_not_asked(door: Door, opener: Path) -> None:
    told = answers(door, opener, f"apart:{door.real}", LD_PRELOAD=HOOK, **{door.setting: door.real})
    assert told[0].startswith(f"{door.path} {door.says(door.gives)}")
    told = answers(door, opener, f"apart:{door.real}", LD_AUDIT=AUDITOR)
    assert told[0].startswith(f"{door.real} {door.says(door.gives)}")


def test_beside_a_preloaded_door_there_is_one(door: Door) -> None:
    """A program that is linked against the library and opens it by its path, too, has one library behind one door."""
    program = (
        "import ctypes, sys\n"
        "by_path, by_name = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])\n"
        "library = by_path\n"
        f"{door.number}"
        f"assert number == {door.gives}\n"
        f"address = lambda l: ctypes.cast(l.{door.asks}, ctypes.c_void_p).value\n"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'ccl.so' in l}\n"
        "print(address(by_path) == address(by_name) == address(ctypes.CDLL(None)), *sorted(maps))\n"
    )
    text = said(sys.executable, "-c", program, door.real, door.soname, LD_PRELOAD=f"{door.path}:{HOOK}")
    assert text.split() == ["True", *sorted(map(str, (door.path, door.real)))]


def test_preloaded_by_a_relative_path_the_door_beside_it_answers(door: Door, opener: Path) -> None:
    """From where the program has gone since, the hook's own folder is not known any more; the preloaded door's SONAME is."""
    script = f"cd '{HOOK.parent}' && LD_PRELOAD=./{door.soname}:./{HOOK.name} exec \"$@\""
    text = said("sh", "-c", script, "sh", opener, door.asks, door.real)
    assert text.startswith(f"./{door.soname} {door.says(door.gives)}")


def test_many_threads_may_open_at_once(door: Door, way: dict[str, Path]) -> None:
    program = (
        "import ctypes, sys, threading\n"
        "gate, got = threading.Barrier(16), []\n"
        "def work(path):\n"
        "    version = ctypes.c_int()\n"
        "    gate.wait()\n"
        "    library = ctypes.CDLL(path)\n"
        f"    call = library.{door.asks}\n"
        "    got.append((ctypes.cast(call, ctypes.c_void_p).value, call(ctypes.byref(version))))\n"
        "threads = [threading.Thread(target=work, args=(sys.argv[1],)) for _ in range(16)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "print(len(got), len(set(got)), got[0][1])\n"
    )
    assert said(sys.executable, "-c", program, door.real, **{door.setting: door.real}, **way).startswith("16 1 ")


def test_before_the_c_library_has_begun_a_file_is_opened_as_it_is(door: Door, tmp_path: Path) -> None:
    """From the program's .preinit_array, where no variable can be read, not the off switch either."""
    early = tmp_path / "early"
    compile_c("-DEARLY", HERE / "opener.c", "-o", early, "-ldl")
    assert answers(door, early, door.real, LD_PRELOAD=HOOK) == answers(door, early, door.real) != []


def test_a_program_under_the_address_sanitizer_is_served(door: Door, fake: Callable[..., Path], tmp_path: Path) -> None:
    """Its dlopen calls the next one, which is the hook's. The door opens the real library without RTLD_DEEPBIND there."""
    checked = tmp_path / "checked"
    compile_c("-g", "-fsanitize=address", "-static-libasan", HERE / "opener.c", "-o", checked, "-ldl")
    real = fake(door.soname)
    told = answers(door, checked, real, door.soname, LD_PRELOAD=f"{HOOK}:{door.path}", **{door.setting: real})
    assert told == [f"{door.path} {door.says(door.fakes)}"] * 2


@pytest.mark.everything  # a compiler and an emulator that nothing else here needs
def test_on_aarch64_the_hook_jumps_too(fake: Callable[..., Path], tmp_path: Path) -> None:
    """Under emulation: the plug-in of a library with a RUNPATH, the door for a path, and dlmopen's three arguments."""
    missing = [*(tool for tool in CROSS if shutil.which(tool) is None), *([] if QEMU else ["qemu-aarch64"])]
    if missing:
        assert not os.environ.get("CI"), f"no {missing[0]}"
        pytest.skip(f"no {missing[0]}")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (theirs / "plugins").mkdir(parents=True)
    ours.mkdir()
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-fno-exceptions", "-fno-rtti"]
    flags += ["-fno-threadsafe-statics", "-nostartfiles", f"-I{SOURCES}"]
    sources = [SOURCES / "ways" / "dlopen.cpp", SOURCES / "ways" / "door.cpp", SOURCES / "text_buffer.cpp"]
    compile_c(*flags, *sources, "-o", ours / HOOK.name, "-ldl", compiler=CROSS[1])
    made = ["-O2", "-shared", "-fPIC"]
    compile_c(*made, "-DVERSION=1", HERE / "fake.c", "-o", ours / "libnccl.so.2", compiler=CROSS[0])
    compile_c(*made, "-DVERSION=2", HERE / "fake.c", "-o", theirs / "libnccl.so.2", compiler=CROSS[0])
    compile_c(*made, "-DVERSION=3", HERE / "fake.c", "-o", theirs / "plugins" / "libplugin.so", compiler=CROSS[0])
    program = theirs / "opener"
    compile_c("-O2", HERE / "opener.c", "-o", program, "-Wl,-rpath,$ORIGIN/plugins", "-ldl", compiler=CROSS[0])
    names = [theirs / "libnccl.so.2", "libplugin.so", f"apart:{theirs / 'libnccl.so.2'}"]
    emulated = (str(QEMU), "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_PRELOAD={ours / HOOK.name}")
    told = said(*emulated, program, "ncclGetVersion", *names).splitlines()
    door = f"{ours / 'libnccl.so.2'} gives 0, 1"
    assert told == [door, f"{theirs}/plugins/libplugin.so gives 0, 3", door]


# ---- the auditor ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["RPATH", "RUNPATH"])
def test_the_auditor_leads_a_linked_program_to_the_door(door: Door, tag: str, tmp_path: Path) -> None:
    """One with an RPATH, too; and the door is not given itself when it opens the real library in the program's folder."""
    linked = tmp_path / "linked"
    dtags = "--disable-new-dtags" if tag == "RPATH" else "--enable-new-dtags"
    words = [f"-Wl,{dtags}", f"-Wl,-rpath,{door.simulated}", "-Wl,--allow-shlib-undefined", "-pthread", "-ldl"]
    compile_c(*client(door), "-o", linked, door.real, door.simulated / door.runtime, *words)
    text = said(linked, "show", LD_AUDIT=AUDITOR)
    assert f"answered by {door.path}\n" in text and f"loaded {door.real}\n" in text
    assert "answered by" in said(linked, "show", LD_AUDIT=AUDITOR, ISTHMUS_DISABLE="1")
    assert f"answered by {door.real}\n" in said(linked, "show", LD_AUDIT=AUDITOR, ISTHMUS_DISABLE="1")


def test_behind_the_auditor_a_program_gets_what_the_bare_library_gives(door: Door, clients: dict[str, Path]) -> None:
    quiet = {"REHEARSAL_QUIET": "1", "REHEARSAL_DEVICES": "2"}
    bare = said(clients[door.library], LD_LIBRARY_PATH=door.simulated, **quiet)
    assert said(clients[door.library], LD_LIBRARY_PATH=door.simulated, LD_AUDIT=AUDITOR, **quiet) == bare


def test_the_trap_of_auditors_is_real(door: Door, opener: Path, tmp_path: Path) -> None:
    """An auditor of the same kind that knows nothing of how a door spells a path gives the door itself again."""
    simple = tmp_path / "simple.c"
    simple.write_text(
        "#include <link.h>\n#include <string.h>\n"
        "unsigned la_version(unsigned v) { return v < LAV_CURRENT ? v : LAV_CURRENT; }\n"
        "char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {\n"
        '  (void)cookie; (void)flag;\n  return strstr(name, "ccl.so") ? (char *)DOOR : (char *)name;\n}\n'
    )
    compile_c("-D_GNU_SOURCE", f'-DDOOR="{door.path}"', "-shared", "-fPIC", simple, "-o", tmp_path / "simple.so")
    ended = run(opener, door.asks, door.real, LD_AUDIT=tmp_path / "simple.so", **{door.setting: door.real})
    assert ended.stdout == f"{door.path} {NOTHING[door.library]}\n" and "is Isthmus' own" in ended.stderr
    told = answers(door, opener, door.real, LD_AUDIT=AUDITOR, **{door.setting: door.real})
    assert told[0].startswith(f"{door.path} {door.says(door.gives)}")


# ---- what they are made of -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [HOOK, AUDITOR], ids=["hook", "auditor"])
def test_nothing_happens_when_they_are_loaded(library: Path) -> None:
    found = dynamic(library)
    assert set(found["DT_NEEDED"]) <= {"libc.so.6", "libdl.so.2"} and "libc.so.6" in found["DT_NEEDED"]
    by_itself = {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY"}
    assert not by_itself & set(found)
    assert not {"DT_RPATH", "DT_RUNPATH", "DT_TEXTREL"} & set(found)
    exported, wanted = symbols(library)
    assert exported == ({"dlopen", "dlmopen", "isthmus_asked_for"} if library == HOOK else {"la_version", "la_objsearch"})
    assert [name for name in wanted if name in ("malloc", "calloc", "free") or name.startswith(("_Z", "__gxx"))] == []


@pytest.mark.parametrize("library", [HOOK, AUDITOR], ids=["hook", "auditor"])
def test_the_package_has_them(library: Path) -> None:
    spec = importlib.util.find_spec("isthmus")
    assert spec is not None and spec.origin is not None
    packaged = Path(spec.origin).parent / "interpose" / library.name
    assert symbols(packaged)[0] == symbols(library)[0]
    assert set(dynamic(packaged)["DT_NEEDED"]) <= {"libc.so.6", "libdl.so.2"}


# ---- the wrong door ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[("nccl", "rccl"), ("rccl", "nccl")], ids=lambda pair: pair[0])
def pair(request: pytest.FixtureRequest) -> tuple[Door, Door]:
    """Two doors for functions of the same names: this one, and the other."""
    this, other = request.param
    return DOORS[this], DOORS[other]


def test_two_preloaded_doors_are_a_line_of_the_log(pair: tuple[Door, Door], opener: Path) -> None:
    this, other = pair
    environment = {"LD_PRELOAD": f"{this.path}:{other.path}", this.setting: this.real}
    ended = run(opener, "ncclGetVersion", this.soname, this.soname, **environment)
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert f"Two front doors are preloaded, this one for {this.soname} and {other.path}" in ended.stderr
    assert run(opener, "ncclGetVersion", this.soname, ISTHMUS_DISABLE="1", **environment).stderr == ""


def test_another_vendors_program_is_a_line_of_the_log(pair: tuple[Door, Door], clients: dict[str, Path]) -> None:
    this, other = pair
    words = f"interpose: the program is linked against {other.soname} and comes here, to the front door for {this.soname}"
    environment = {"LD_PRELOAD": this.path, "LD_LIBRARY_PATH": other.simulated, this.setting: this.real}
    ended = run(clients[other.library], "show", **environment)
    assert ended.returncode == 0 and ended.stderr.count("\n") == 1 and words in ended.stderr, ended.stderr
    right = run(clients[other.library], "show", LD_PRELOAD=other.path, LD_LIBRARY_PATH=other.simulated)
    assert right.stderr == ""


def test_where_the_door_finds_no_library_its_error_says_that_it_is_the_wrong_one(
    pair: tuple[Door, Door], clients: dict[str, Path]
) -> None:
    this, other = pair
    environment = {"LD_PRELOAD": this.path, "LD_LIBRARY_PATH": other.simulated, this.setting: "/nowhere"}
    ended = run(clients[other.library], "show", **environment)
    assert ended.returncode == 3 and ended.stderr.count("\n") == 2, ended.stderr
    assert f"the program is linked against {other.soname} and comes here" in ended.stderr
