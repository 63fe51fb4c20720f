#!/usr/bin/env python3
"""Wheels that pip installs elsewhere: dist/*.whl, one for each Python, each tried in an environment that has nothing.

    python scripts/make_wheels.py [--python EXECUTABLE ...] [--torch REQUIREMENT] [--out FOLDER]

By itself it makes one for .venv's Python and one for every other Python from 3.10 on that it finds (on PATH, and pyenv's).
auditwheel reads which symbols of the C and C++ libraries the files ask for, and writes into the wheel's name the oldest
system that has them: that of a build on this machine, or an older one.

A wheel has the torch backend if its interpreter has torch, and the build tag in its name then says which: 2.13torch.
--torch torch==2.13.0 gives torch to the interpreters that have none (TORCH_INDEX says where pip gets it from).

_core is for one Python version each: pybind11 knows no limited API.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup import FIND_TORCH, PYTHON, ROOT, VENV, answer, run, warnings_are_errors

WORK = ROOT / "build" / "wheels"
# Not of an interpreter without the lock of all threads ("t"): the module needs that lock.
TAG = "import sys; sys.version_info >= (3, 10) and 't' not in sys.abiflags and print('cp%d%d' % sys.version_info[:2])"
CAN_BUILD = """
import ensurepip, pathlib, sysconfig, venv
print('yes' if (pathlib.Path(sysconfig.get_paths()['include']) / 'Python.h').is_file() else '')
"""
BUILD_TOOLS = ("pip==", "scikit-build-core==", "pybind11==")


def interpreters() -> dict[str, Path]:
    """By tag, one of each version; .venv's own first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = [Path(found) for minor in range(10, 30) if (found := shutil.which(f"python3.{minor}"))]
    found: dict[str, Path] = {}
    for python in [PYTHON, *on_path, *sorted(pyenv.glob("3.*/bin/python"), reverse=True)]:
        if not (tag := answer(python, TAG)) or tag in found:
            continue
        if python == PYTHON or answer(python, CAN_BUILD):
            found[tag] = python
        else:
            print(f"{python}: left out, as it has no headers (python3-dev) or no ensurepip (python3-venv)", flush=True)
    return found


def replaces(new: Path, old: Path) -> bool:
    """Whether both wheels are for one Python, one torch and one machine, of whatever version and for whatever system."""

    def what(wheel: Path) -> tuple[str, str, str, str]:
        name, _, *build, interpreter, abi, system = wheel.stem.split("-")
        machine = "x86_64" if system.endswith("x86_64") else system.rpartition("_")[2]
        return name, "".join(build), f"{interpreter}-{abi}", machine

    return what(new) == what(old)


def build_tools() -> list[str]:
    """As requirements-dev.txt pins them."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(BUILD_TOOLS)]


def environment(python: Path, folder: Path, torch: str) -> Path:
    """An interpreter with what the build needs, and torch where there is one."""
    if python == PYTHON:
        return PYTHON
    inside = folder / "venv" / "bin" / "python"
    if not answer(inside, "import scikit_build_core, pybind11; print('yes')"):
        keep = ["--system-site-packages"] if answer(python, FIND_TORCH) else []
        run(python, "-m", "venv", "--clear", *keep, folder / "venv")
        run(inside, "-m", "pip", "install", *build_tools())
    if torch and not answer(inside, FIND_TORCH):
        index = os.environ.get("TORCH_INDEX")
        run(inside, "-m", "pip", "install", *(["--index-url", index] if index else []), torch)
    return inside


def make(tag: str, python: Path, torch: str, out: Path) -> Path:
    folder = WORK / tag
    made = folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    inside = environment(python, folder, torch)
    minor = ".".join(answer(inside, FIND_TORCH).split("+")[0].split(".")[:2])
    # As far below the sources as build/release is: ccache then knows the files of one build in the other.
    options = [f"-Cbuild-dir=build/wheel-{tag}", f"-Ccmake.define.ISTHMUS_WERROR={warnings_are_errors()}"]
    options += [f"-Cwheel.build-tag={minor}torch"] if minor else []
    run(inside, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", made, *options, ".")
    # Without a library of another place in it: torch's are found by torch, and all else is the system's or our own.
    excluded = [word for name in ("libtorch*.so", "libc10*.so") for word in ("--exclude", name)]
    run(VENV / "bin" / "auditwheel", "repair", *excluded, "-w", made / "tagged", next(made.glob("*.whl")))
    (wheel,) = (made / "tagged").glob("*-manylinux_*.whl")
    out.mkdir(parents=True, exist_ok=True)
    for older in out.glob(f"*-{tag}-{tag}-*.whl"):
        if replaces(wheel, older):
            older.unlink()
    return Path(shutil.copy2(wheel, out))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes wheels, and tries each in an environment that has nothing.")
    parser.add_argument("--python", action="append", type=Path, help="for this interpreter; several times for several")
    parser.add_argument("--torch", default="", help="for interpreters without torch, as in torch==2.13.0")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    for name, command in (("CC", "cc"), ("CXX", "c++")):  # as CMake finds them; the builds of Python say gcc and g++
        if shutil.which(command):
            os.environ.setdefault(name, command)
    chosen = interpreters()
    if options.python:
        chosen = {}
        for python in options.python:
            tag = answer(python, TAG)
            if not tag:
                raise SystemExit(f"{python}: not a Python of version 3.10 or newer")
            chosen[tag] = python
    for tag, python in chosen.items():
        print(f"{tag}: {python}", flush=True)
        wheel = make(tag, python, options.torch, options.out.absolute())
        run(PYTHON, ROOT / "scripts" / "clean_install.py", WORK / tag / "tried", "--wheel", wheel, "--python", python)
        print(f"  {wheel.relative_to(ROOT) if wheel.is_relative_to(ROOT) else wheel}: installed and tried", flush=True)


if __name__ == "__main__":
    main()
