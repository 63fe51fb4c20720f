#!/usr/bin/env python3
"""Does the package work for somebody who has nothing?

In a fresh virtual environment without torch: installs the wheel that the set-up built (scripts/setup.py), imports, runs an
all_reduce on two ranks, and sees that isthmus.torch says what is missing.

    python scripts/clean_install.py FOLDER [--from-sources | --wheel FILE] [--python EXECUTABLE]

--from-sources: installs by plain `pip install .`, in a copy of the sources that git would give. Each source is compiled
alone there, so a header that one has by way of another is missed. --python: whose environment it is, if not this one's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

IMPORT = """
import importlib.util, pathlib, isthmus
assert importlib.util.find_spec("torch") is None, "this environment has torch; the check is of one that has none"
folder = pathlib.Path(isthmus.__file__).parent
doors = ("libnccl.so.2", "librccl.so.1", "libhccl.so", "libisthmus_dlopen.so", "libisthmus_audit.so")
doors = [f"interpose/{name}" for name in doors]
major, minor, _ = isthmus.__version__.split(".")
library = "libisthmus.so." + (f"0.{minor}" if major == "0" else major)
for name in (library, "libisthmus.so", "bin/isthmus-bench", "include/isthmus/isthmus.h", "py.typed", *doors):
    assert (folder / name).is_file(), f"the package lacks {name}"
import ctypes
ctypes.CDLL(str(folder / "interpose" / "libisthmus_bridge.so"))  # finds libisthmus.so in the folder above
if FROM_SOURCES:
    assert not list(folder.glob("_torch*.so")), "a torch extension was built without torch"
print(isthmus.__version__, folder)
"""

TORCH = """
try:
    import isthmus.torch
except ImportError as error:
    text = str(error)
    assert "torch" in text and "pip install" in text, f"does not say what is missing: {text}"
    print("isthmus.torch says:", text)
else:
    raise SystemExit("isthmus.torch was imported in an environment without torch")
"""

ALL_REDUCE = """
import sys, numpy, isthmus
rank = int(sys.argv[1])
comm = isthmus.init(rank=rank, world_size=2, address=sys.argv[2])
x = numpy.full(1000, rank + 1, dtype=numpy.float32)
comm.all_reduce(x)
assert (x == 3).all(), x
comm.destroy()
print("rank", rank, "ok")
"""


def copy_sources(target: Path) -> None:
    """What git tracks or would track; all but what builds leave behind, where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listing.returncode == 0:
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target / name)
    else:
        shutil.copytree(
            ROOT, target, ignore=shutil.ignore_patterns(".venv", "build", "__pycache__", ".*_cache"), dirs_exist_ok=True
        )


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def main(work: Path, from_sources: bool, wheel: Path | None, interpreter: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    source, venv = work / "source", work / "venv"
    source.mkdir(parents=True)
    if from_sources:
        copy_sources(source)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # ccache may know these files from the build of the working tree, if both name them relative to their own top.
    env |= {"CCACHE_BASEDIR": str(source), "CCACHE_NOHASHDIR": "1"}
    env["SKBUILD_CMAKE_DEFINE"] = f"ISTHMUS_UNITY=OFF;ISTHMUS_WERROR={'ON' if env.get('CI') else 'OFF'}"
    python = venv / "bin" / "python"

    def say(title: str, *command: str | Path) -> None:
        begin = time.monotonic()
        subprocess.run([str(c) for c in command], cwd=work, env=env, check=True, stdin=subprocess.DEVNULL)
        print(f"-- {title}: {time.monotonic() - begin:.1f} s", flush=True)

    say("virtual environment", interpreter, "-m", "venv", venv)
    install = (python, "-m", "pip", "install", "--progress-bar", "off")
    if from_sources:
        # In a build directory below the sources: in the temporary one that pip would take, ccache knows no file again.
        # The long word: Debian 12's pip knows no -C.
        say("pip install .", *install, "--config-settings=build-dir=build/release", source)
    else:
        say("pip install WHEEL", *install, wheel or next((ROOT / "build" / "wheel").glob("*.whl")))
    say("import", python, "-c", f"FROM_SOURCES = {from_sources}\n{textwrap.dedent(IMPORT)}")
    say("isthmus.torch", python, "-c", textwrap.dedent(TORCH))
    say(
        "isthmus-bench",
        venv / "bin" / "isthmus-bench",
        "all_reduce",
        "--ranks",
        "2",
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8",
        "-n",
        "5",
    )
    address = f"127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen([python, "-c", ALL_REDUCE, str(r), address], cwd=work, env=env, stdin=subprocess.DEVNULL)
        for r in (0, 1)
    ]
    try:
        codes = [rank.wait(60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], f"the two ranks ended with {codes}"
    shutil.rmtree(work)  # a fresh copy each time; only a failed one is worth keeping


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from-sources", action="store_true")
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    given = parser.parse_args()
    main(given.folder, given.from_sources, given.wheel, given.python)
