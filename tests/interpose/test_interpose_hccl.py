"""What is HCCL's alone: its codes and texts, its two libraries, where it is installed, and an independent client of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from doors import DOORS, HERE, compile_c, run, said
from interpose_entries import Row, read_table
from test_interpose_calls import HCCL_PRELUDE
from test_interpose_real import calls, none_installed  # noqa: F401

DOOR = DOORS["hccl"]
ABSENT, MISSING = 6, 5


# ---- what a call gives that has no real function -------------------------------------------------------------------------


@pytest.mark.usefixtures("none_installed")
def test_without_a_real_library_every_call_is_not_found_and_the_codes_text_says_where_it_was_looked_for() -> None:
    names = ["HcclGetRootInfo", "HcomSend", "HcclGetErrorString=6", "HcclGetErrorString=5", "HcclGetErrorString=0"]
    told, logged = calls(DOOR.path, *names, ISTHMUS_LOG="warn")
    assert told[:2] == [f"{ABSENT}", f"{ABSENT}"]
    text = told[2]
    assert text.startswith("Isthmus found no HCCL to forward to; looked at what is loaded, ")
    assert "ISTHMUS_REAL_HCCL" in text and "libhccl.so" in text and "its cache" in text and "set_env.sh" in text
    assert told[3:] == [text, "no error"]
    assert logged.count("\n") == 1 and text in logged, "said once"


def test_what_has_no_way_to_tell_of_an_error_says_that_it_can_do_nothing() -> None:
    told, _ = calls(DOOR.path, "number", "HcomGetDeviceType", **{DOOR.setting: "/nowhere"})
    assert told == ["0", "-1"]
    program = "import ctypes, sys\nf = ctypes.CDLL(sys.argv[1]).HcomFindGroup\nf.restype = ctypes.c_bool\nprint(f(b'x'))\n"
    ended = run(sys.executable, "-c", program, DOOR.path, **{DOOR.setting: "/nowhere"})
    assert ended.stdout == "False\n"


def test_a_function_that_the_real_library_lacks_is_not_supported_and_the_log_says_which(fake: Callable[..., Path]) -> None:
    """Whether the table knows its parameters or not."""
    real = fake("libhccl.so")
    names = ["HcclCommSuspend", "HcclGetErrorString=5", "HcomDestroyGroup", "HcclCommSuspend", "HcomDestroyGroup", "number"]
    told, logged = calls(DOOR.path, *names, **{DOOR.setting: real})
    assert told == [f"{MISSING}", "not supported, says the fake", f"{MISSING}", f"{MISSING}", f"{MISSING}", "7"]
    for name in ("HcclCommSuspend", "HcomDestroyGroup"):
        assert logged.count(f"{name}: the real library has no such function; it is HCCL in {real}\n") == 1
    assert logged.count("\n") == 2, "once for each function"


def test_a_library_without_texts_for_errors_has_none(tmp_path: Path) -> None:
    """As the oldest."""
    source, real = tmp_path / "hccl.c", tmp_path / "libhccl.so"
    source.write_text("int HcclAllReduce(void);\nint HcclAllReduce(void) { return 0; }\n")
    compile_c("-shared", "-fPIC", source, "-o", real)
    told, logged = calls(DOOR.path, "HcclGetErrorString=0", "HcclGetErrorString=5", **{DOOR.setting: real})
    assert told == ["no error", "the HCCL in use has no texts for errors"] and logged == ""


def test_switched_off_it_adds_no_word(fake: Callable[..., Path]) -> None:
    environment = {DOOR.setting: fake("libhccl.so"), "ISTHMUS_LOG": "trace", "ISTHMUS_DISABLE": "1"}
    told, logged = calls(DOOR.path, "HcclCommSuspend", "HcomDestroyGroup", "HcclGetErrorString=5", **environment)
    assert told == [f"{MISSING}", f"{MISSING}", "not supported, says the fake"] and logged == ""


# ---- where it is ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("none_installed")
def test_intels_library_of_the_same_name_is_passed_by(fake: Callable[..., Path]) -> None:
    intels, huaweis = fake("libhccl.so", "intel", "NOT_HCCL"), fake("libhccl.so", "huawei")
    path = f"{intels.parent}:{huaweis.parent}"
    assert calls(DOOR.path, "number", LD_LIBRARY_PATH=path)[0] == ["7"]
    told, _ = calls(DOOR.path, "HcclCommDestroy", "HcclGetErrorString=6", LD_LIBRARY_PATH=intels.parent)
    assert told[0] == f"{ABSENT}" and f"{intels} (has no HcclAllReduce)" in told[1]


@pytest.mark.usefixtures("none_installed")
@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("ASCEND_HOME_PATH", ""),
        ("ASCEND_TOOLKIT_HOME", ""),
        ("HOME", "Ascend/cann/"),
        ("HOME", "Ascend/ascend-toolkit/latest/"),
    ],
)
def test_what_the_vendors_variables_say_is_looked_at(
    fake: Callable[..., Path], tmp_path: Path, variable: str, folder: str
) -> None:
    """set_env.sh sets the first two."""
    real = fake("libhccl.so", f"cann/{folder}lib64", "VERSION=85")
    assert real.is_file()
    assert calls(DOOR.path, "number", **{variable: tmp_path / "cann"})[0] == ["85"]
    # What is no path says nothing.
    told, _ = calls(DOOR.path, "HcclCommDestroy", "HcclGetErrorString=6", **{variable: "cann"})
    assert told[0] == f"{ABSENT}" and f", cann/{folder}lib64" not in told[1]


# ---- its two libraries ---------------------------------------------------------------------------------------------------


def split(folder: Path, needs: bool) -> tuple[Path, Path]:
    """The newest HCCL: libhccl.so for operators, libhcomm.so for communicators."""
    folder.mkdir()
    first, second = folder / "libhccl.so", folder / "libhcomm.so"
    shared = ("-shared", "-fPIC", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
    compile_c(*shared, "-Wl,-soname,libhcomm.so", HERE / "fake_hcomm.c", "-o", second)
    with_second = [second] if needs else []
    compile_c(*shared, "-DSPLIT", "-Wl,-soname,libhccl.so", HERE / "fake_hccl.c", "-o", first, "-ldl", *with_second)
    return first, second


TWO_ARGUMENTS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.HcclGetCommConfigCapability(), library.HcclBarrier(1, 1), library.HcclBarrier(1, 2))
print(library.HcomGetRankId(ctypes.c_long(7), ctypes.c_long(9)))
"""


@pytest.mark.parametrize("preloaded", [False, True])
def test_the_second_of_the_two_libraries_is_reached_through_the_first(tmp_path: Path, preloaded: bool) -> None:
    """Also by the first itself, which asks for the next library that has a function."""
    real, _ = split(tmp_path / "lib64", needs=True)
    preload = {"LD_PRELOAD": DOOR.path} if preloaded else {}
    text = said(sys.executable, "-c", TWO_ARGUMENTS, DOOR.path, **preload, **{DOOR.setting: real})
    assert text.splitlines() == ["93 21 0", "709"]


def test_the_second_of_the_two_libraries_is_taken_where_the_program_has_loaded_it(tmp_path: Path) -> None:
    real, second = split(tmp_path / "lib64", needs=False)
    environment = {DOOR.setting: real}
    program = f"import ctypes\nctypes.CDLL({str(second)!r})\n{TWO_ARGUMENTS}"
    assert said(sys.executable, "-c", program, DOOR.path, **environment).splitlines() == ["93 4 4", "709"]
    told, logged = calls(DOOR.path, "number", "HcomGetRankId", **environment)
    assert told == ["0", f"{MISSING}"] and "HcomGetRankId: the real library has no such function" in logged


@pytest.mark.parametrize("order", [("libhccl.so", "libhcomm.so"), ("libhcomm.so", "libhccl.so")])
def test_preloaded_for_a_program_that_is_linked_against_both(tmp_path: Path, order: tuple[str, str]) -> None:
    folder, plugin = tmp_path / "lib64", tmp_path / "plugin.so"
    split(folder, needs=True)
    libraries = [folder / name for name in order]
    compile_c("-DASCEND", "-shared", "-fPIC", "-Wl,--no-as-needed", HERE / "plugin.c", "-o", plugin, *libraries)
    program = (
        "import ctypes, sys\nplugin = ctypes.CDLL(sys.argv[1])\nplugin.whose.restype = ctypes.c_char_p\n"
        "print(plugin.number(), plugin.whose().decode())\n"
    )
    text = said(sys.executable, "-c", program, plugin, LD_PRELOAD=DOOR.path, LD_LIBRARY_PATH=folder)
    assert text == f"93 {DOOR.path}\n"


# ---- an independent client -----------------------------------------------------------------------------------------------


def recorder(rows: list[Row], folder: Path) -> Path:
    """A library with every function of the table that prints its arguments as numbers, and fails."""
    text = HCCL_PRELUDE
    for row in rows:
        space = "" if row.result.endswith("*") else " "
        declared = ", ".join(f"{kind} a{i}" for i, kind in enumerate(row.parameters)) or "void"
        numbers = [
            f"(unsigned long long){f'a{i}.value' if kind == 'Setting' else f'(uintptr_t)a{i}'}"
            for i, kind in enumerate(row.parameters)
        ]
        shown = ", ".join([f'"{row.name}{" %llu" * len(numbers)}\\n"', *numbers])
        result = '"text"' if row.result.endswith("*") else "3"
        text += (
            f"{row.result}{space}{row.name}({declared});\n{row.result}{space}{row.name}({declared}) {{\n"
            f"  printf({shown});\n  fflush(stdout);\n  return ({row.result}){result};\n}}\n"
        )
    path = folder / "libhccl.so"
    (folder / "recorder.c").write_text(text)
    compile_c("-shared", "-fPIC", "-Wl,-soname,libhccl.so", folder / "recorder.c", "-o", path)
    return path


def disagreements(names: list[str], rows: list[Row], real: Path) -> tuple[list[str], int]:
    """Where pyhccl, behind the door, hands over something else than the table says, and how many functions it called."""
    environment = {"PYHCCL_LIBRARY": DOOR.path, DOOR.setting: real}
    text = said(sys.executable, HERE / "client_pyhccl.py", *names, **environment)
    recorded: dict[str, list[int]] = {}
    found, called = [], 0
    parameters = {row.name: row.parameters for row in rows}
    for line in text.splitlines():
        name, _, numbers = line.partition(" ")
        if name != "passed":
            recorded[name] = [int(number) for number in numbers.split()]
            continue
        name, given = json.loads(numbers)
        if name not in recorded:
            found.append(f"{name} was not called")
            continue
        called += 1
        got, at = recorded[name], 0
        for number, bits in given:
            if number not in got[at:]:
                found.append(f"{name}: {number:#x} is not there, or not in its place: {[hex(n) for n in got]}")
                break
            at = got.index(number, at)
            if bits and WIDTHS.get(parameters[name][at], 64) != bits:
                found.append(f"{name}: argument {at} has {bits} bits")
            at += 1
    return found, called


WIDTHS = {"uint8_t": 8, "int32_t": 32, "uint32_t": 32, "Type": 32, "Op": 32, "Kind": 32, "Result": 32, "Setting": 32}


def known_rows() -> list[Row]:
    return [row for row in read_table(DOOR.rows) if row.policy != "jump"]


def test_pyhccl_declares_the_functions_as_the_table_does(tmp_path: Path) -> None:
    """It was built with Huawei's headers or its own copy of them; the numbers that it passes are as wide as those say."""
    pyhccl = pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")
    rows = known_rows()
    names = [row.name for row in rows if hasattr(pyhccl, row.name)]
    found, called = disagreements(names, rows, recorder(rows, tmp_path))
    assert found == [] and called == len(names) > 100


def test_another_table_than_pyhccls_would_be_noticed(tmp_path: Path) -> None:
    pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")
    changed = []
    for row in known_rows():
        if row.name == "HcclSend":
            changed.append(replace(row, parameters=tuple("uint32_t" if p == "uint64_t" else p for p in row.parameters)))
        elif row.name == "HcclTeamRankToMember":
            changed.append(replace(row, parameters=("Comm", "uint32_t", "Team", "uint32_t *")))
        elif row.name == "HcclBroadcast":
            changed.append(replace(row, parameters=tuple("uint64_t" if p == "uint32_t" else p for p in row.parameters)))
    names = [row.name for row in changed]
    rows = [*changed, *(row for row in known_rows() if row.name not in names)]
    found, called = disagreements(names, rows, recorder(rows, tmp_path))
    assert {line.split(":")[0] for line in found} == set(names) and called == len(names) == 3, found
