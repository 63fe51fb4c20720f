"""A vendor's library that is missing, too old, incomplete, another's or no library, or has no device: init fails with one
sentence that names the file, the version found and what to install, and there is a way to go on without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from isthmus import rehearse
from patience import patient
from vendor_files import DEVICES, LIBRARIES, Library, compile_library

# How init fails with the one and works with the other settings, and what `isthmus doctor` has to say.
PROGRAM = """
import array, json, sys
import isthmus
from isthmus import _core

def attempt(settings):
    try:
        with isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings=settings) as comm:
            x = comm.all_reduce(array.array("f", [1, 2]))
            return ["works", list(x), [group["ccl"] for group in comm.topology()["groups"]]]
    except isthmus.Error as error:
        return [type(error).__name__, str(error)]

name = sys.argv[1]
found = json.loads(_core.devices() if name in ("cuda", "hip", "acl") else _core.libraries())
doctor = next(one for one in found if name in (one.get("vendor"), one.get("family")))
print(json.dumps([attempt(json.loads(sys.argv[2])), attempt(json.loads(sys.argv[3])), doctor]))
"""
SIMULATED = {"cuda": ("nvidia", "libcuda.so.1"), "hip": ("amd", "libamdhip64.so.6"), "acl": ("ascend", "libascendcl.so")}
NO_DEVICE = {"cuda": "100", "hip": "100", "acl": "207004"}


@cache
def on_this_machine(file: str) -> bool:
    """In a new process: an earlier test of this one may have opened such a library by its path."""
    opens = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({file!r})"]
    return subprocess.run(opens, capture_output=True).returncode == 0


def attempts(library: Library, folder: Path, **tells: str) -> tuple[list[str], list[object], dict[str, object]]:
    """In a new process, whose loader finds what is in `folder`, and the simulated runtime of the library's devices."""
    places = [str(folder)]
    if library.vendor:  # the runtime alone, without the simulated library beside it
        vendor, runtime = SIMULATED[library.vendor]
        place = folder / "simulated" / vendor
        place.mkdir(parents=True)
        for name in ("librehearsal.so", f"{vendor}/{runtime}"):
            (folder / "simulated" / name).symlink_to(rehearse.folder() / name)
        places.append(str(place))
    if library.name == "hip":  # of the three names for it the newest is asked for first
        assert not on_this_machine("libamdhip64.so.7"), "this test cannot run beside a real one"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(places),
        "REHEARSAL_DEVICES": "1",
        "REHEARSAL_QUIET": "1",
        "ISTHMUS_LOG": "error",
        **{f"FILES_{name}": value for name, value in tells.items()},
    }
    words = [library.name, json.dumps(library.settings), json.dumps(library.without)]
    command = [sys.executable, "-c", PROGRAM, *words]
    ended = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=patient(60))
    assert ended.returncode == 0, ended
    failed, went_on, doctor = json.loads(ended.stdout)
    return failed, went_on, doctor


def is_one_sentence(library: Library, found: tuple[list[str], list[object], dict[str, object]], *parts: str) -> None:
    (kind, text), went_on, doctor = found
    assert kind == "UnsupportedError" and "\n" not in text.strip(), (kind, text)
    for part in (library.file.partition(".so")[0], library.install, *parts):
        assert part in text, (part, text)
    assert ("ISTHMUS_DEVICE=host" if library.name in DEVICES else "ISTHMUS_CCL=none") in text, text
    assert not doctor["found"] and str(doctor["text"]) in text, (doctor, text)
    assert went_on == ["works", [1.0, 2.0], [""]], went_on


by_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@by_library
def test_missing(library: Library, tmp_path: Path) -> None:
    if on_this_machine(library.file):
        pytest.skip(f"this machine has a {library.file}")
    is_one_sentence(library, attempts(library, tmp_path), "No such file")


@by_library
def test_no_library_at_all(library: Library, tmp_path: Path) -> None:
    (tmp_path / library.file).write_text("This file is no library, whatever its name may be.\n" * 10)
    is_one_sentence(library, attempts(library, tmp_path), "invalid ELF header")


@by_library
def test_another_library_under_that_name(library: Library, tmp_path: Path) -> None:
    source = tmp_path / "foreign.c"
    source.write_text("int compress(void) { return 1; }\n")
    compile_library(source, tmp_path / library.file)
    is_one_sentence(library, attempts(library, tmp_path), " has ")


@by_library
def test_a_function_is_missing(library: Library, tmp_path: Path) -> None:
    library.build(tmp_path / library.file, absent=library.absent)
    new = {"cuda": "12040", "hip": "60032831", "acl": "8.3.RC1", "oneccl": "20220200"}.get(library.name, "22703")
    found = attempts(library, tmp_path, VERSION=new)
    told = {"cuda": "for CUDA 12.4", "hip": "version 6.0", "acl": "CANN 8.3.RC1", "oneccl": "version 2022.2.0"}
    is_one_sentence(library, found, library.absent, told.get(library.name, "version "))


@by_library
def test_too_old(library: Library, tmp_path: Path) -> None:
    whole = library.name not in ("acl", "hccl")
    library.build(tmp_path / library.file, absent="" if whole else library.absent)
    is_one_sentence(library, attempts(library, tmp_path, VERSION=library.old), library.says)


@pytest.mark.parametrize("library", [one for one in LIBRARIES if one.name in DEVICES], ids=lambda library: library.name)
def test_a_runtime_without_a_device(library: Library, tmp_path: Path) -> None:
    library.build(tmp_path / library.file)
    new = {"cuda": "12040", "hip": "60032831", "acl": "8.3.RC1"}[library.name]
    (kind, text), went_on, doctor = attempts(library, tmp_path, VERSION=new, CODE=NO_DEVICE[library.name])
    assert kind == "UnsupportedError" and "is here but finds no device" in text and "VISIBLE_DEVICES" in text, text
    assert "ISTHMUS_DEVICE=host" in text and "\n" not in text.strip(), text
    assert not doctor["found"] and str(doctor["text"]) in text, doctor
    assert went_on == ["works", [1.0, 2.0], [""]]


@pytest.mark.parametrize("library", [one for one in LIBRARIES if one.name in DEVICES], ids=lambda library: library.name)
def test_a_runtime_that_does_not_start(library: Library, tmp_path: Path) -> None:
    """As a driver whose part in the kernel is of another version."""
    library.build(tmp_path / library.file)
    new = {"cuda": "12040", "hip": "60032831", "acl": "8.3.RC1"}[library.name]
    (kind, text), went_on, _ = attempts(library, tmp_path, VERSION=new, CODE="803")
    assert kind == "UnsupportedError" and "803" in text and "ISTHMUS_DEVICE=host" in text, text
    assert "\n" not in text.strip() and went_on == ["works", [1.0, 2.0], [""]], (text, went_on)


@pytest.mark.parametrize("library", [one for one in LIBRARIES if one.vendor], ids=lambda library: library.name)
def test_a_library_on_a_rank_without_its_device(library: Library, tmp_path: Path) -> None:
    """It is there and whole; but what it would work on is not."""
    library.build(tmp_path / library.file)
    command = [sys.executable, "-c", PROGRAM, library.name, json.dumps({"CCL": library.name}), json.dumps({"CCL": "auto"})]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FILES_VERSION": "22703"}
    ended = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=patient(60))
    assert ended.returncode == 0, ended
    (kind, text), went_on, doctor = json.loads(ended.stdout)
    assert kind == "ConfigError" and f"ISTHMUS_CCL={library.name}" in text and "ISTHMUS_DEVICE" in text, text
    assert "\n" not in text.strip() and doctor["found"] and went_on == ["works", [1.0, 2.0], [""]], (text, went_on)
