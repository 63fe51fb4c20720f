#!/usr/bin/env python3
"""Whether every access of what a lock guards holds the lock (csrc/base/lock.hpp): clang's -Wthread-safety.

Half of clang's time goes into headers, so several sources of a folder are read at once. Where that finds something, each of
them is read alone: it may be no more than two names that collide. Prints one line a fault; exit status 1 if there is one.

Where nothing was found, build/locks keeps what clang had read. Sources are not read again while none of that has changed.

Some faces need a package of the Python that runs this: torch or pybind11. Without it their folders are left out, and the
last line says so.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import interpose_entries

ROOT = Path(__file__).resolve().parent.parent

# Those that see no floor. Their headers are named without a folder, so each stands on a folder of its own.
FACES = ("csrc/python", "csrc/torch", "csrc/interpose", "csrc/rehearsal", "bench")
# Whose sources include headers of a Python package, and where in the package these lie.
PACKAGES = {
    "csrc/python": ("pybind11", ("include",)),
    "csrc/torch": ("torch", ("include", "include/torch/csrc/api/include")),
    "csrc/rehearsal/torch": ("torch", ("include", "include/torch/csrc/api/include")),
}
# Built with headers that are made elsewhere: programs of other libraries, for developers.
OUTSIDE = ("bench/interpose", "bench/kernels")
TOGETHER = 30  # sources that are read at once
COMMAND = (
    *("clang++", "-fsyntax-only", "-std=c++20", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"),
    "-DISTHMUS_ASSERTIONS=1",
    # What the build gives reduce/kernels.cpp for each instruction set.
    *('-DISTHMUS_REDUCE_NAME="scalar"', "-DISTHMUS_REDUCE_TABLE=kTableScalar", "-DHWY_COMPILE_ONLY_SCALAR"),
    # What the build gives libraries of csrc/rehearsal.
    *("-DREHEARSAL_NCCL_VERSION=22903", '-DREHEARSAL_NCCL_LIBRARY="NCCL"', "-DHIP_MAJOR=6"),
)
FAULT = re.compile(r"^\S+:\d+:\d+: (?:fatal )?error: ")


def package(folder: str) -> list[str] | None:
    """The words by which clang finds the headers of the package that a folder needs; None: the package is not here."""
    if folder not in PACKAGES:
        return []
    name, places = PACKAGES[folder]
    found = importlib.util.find_spec(name)
    python = Path(sysconfig.get_path("include"))
    if found is None or not found.submodule_search_locations or not (python / "Python.h").exists():
        return None
    headers = [Path(found.submodule_search_locations[0], place) for place in places]
    return [str(word) for path in (*headers, python) for word in ("-isystem", path)]


@functools.cache
def made_headers(root: Path) -> Path:
    """A folder with the headers that the build makes of the tables of csrc/interpose."""
    folder = Path(tempfile.mkdtemp(prefix="isthmus-locks-"))
    atexit.register(shutil.rmtree, folder)
    for table, header in (("nccl.symbols", "routed_calls.hpp"), ("hccl.symbols", "routed_calls_hccl.hpp")):
        interpose_entries.main([str(root / "csrc" / "interpose" / table), interpose_entries.BRIDGE, str(folder / header)])
    return folder


def includes(root: Path, folder: Path) -> list[str]:
    """Where the sources of a folder find headers."""
    name = folder.relative_to(root).as_posix()
    face = next((face for face in FACES if f"{name}/".startswith(f"{face}/")), None)
    public = ["-I", str(root / "csrc" / "include")]
    if face is None:
        return ["-I", str(root / "csrc"), *public]
    made = ["-I", str(made_headers(root))] if face == "csrc/interpose" else []
    # csrc/ comes last, for base/lock.hpp alone (scripts/check_layers.py): csrc/torch must not hide torch.
    return ["-I", str(root / face), *made, *public, *(package(name) or []), "-idirafter", str(root / "csrc")]


def said(root: Path, sources: list[Path], *more: str) -> list[str]:
    """What clang says of these sources of one folder, as one file: a line a fault."""
    text = "".join(f'#include "{source}"\n' for source in sources)
    result = subprocess.run(
        [*COMMAND, *includes(root, sources[0].parent), *more, "-x", "c++", "-"],
        input=text,
        text=True,
        capture_output=True,
    )
    if result.returncode == 0:
        return []
    faults = [line.replace(f"{root}/", "") for line in result.stderr.splitlines() if FAULT.match(line)]
    return faults or [f"clang++ failed on {', '.join(map(str, sources))}: {result.stderr.strip()}"]


@functools.cache
def clang() -> str:
    return subprocess.run([COMMAND[0], "--version"], text=True, capture_output=True, check=True).stdout


class Seen:
    """What clang had read when it found nothing in these sources: each file, with a digest."""

    def __init__(self, root: Path, sources: list[Path]) -> None:
        folder = sources[0].parent.relative_to(root)
        names = "\n".join(source.name for source in sources)
        self.root, self.asked = root, [*COMMAND, names, clang()]
        stem = hashlib.sha256(f"{folder}\n{names}".encode()).hexdigest()[:16]
        self.stamp = root / "build" / "locks" / f"{folder.as_posix().replace('/', '-')}-{stem}"
        self.read = self.stamp.with_suffix(".d")
        # The folder of headers that are made has another name in each run.
        self.made = f"{made_headers(root)}/" if folder.as_posix() == "csrc/interpose" else "\n"

    def still(self) -> bool:
        try:
            before = json.loads(self.stamp.read_text())
            return before["asked"] == self.asked and all(self._now(name) == was for name, was in before["files"].items())
        except (OSError, ValueError, KeyError):
            return False

    def keep(self) -> None:
        """By the rule of make that clang has written."""
        _, _, words = self.read.read_text().replace("\\\n", " ").partition(":")
        files = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", words.strip())]
        names = [name.replace(self.made, "made/") for name in files if name not in ("-", "<stdin>")]
        self.stamp.write_text(json.dumps({"asked": self.asked, "files": {name: self._now(name) for name in names}}))

    def _now(self, name: str) -> str:
        return _digest(Path(name.replace("made/", self.made, 1) if name.startswith("made/") else self.root / name))


def _digest(path: Path) -> str:
    state = path.stat()
    return _digest_of(path, state.st_mtime_ns, state.st_size)


@functools.cache  # many sources include the same headers
def _digest_of(path: Path, *_: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


def found(root: Path, sources: list[Path]) -> list[str]:
    """What clang says of them. Where that is nothing, it is kept what was read."""
    seen = Seen(root, sources)
    seen.stamp.parent.mkdir(parents=True, exist_ok=True)
    if faults := said(root, sources, "-MD", "-MF", str(seen.read), "-MT", "it"):
        seen.stamp.unlink(missing_ok=True)
    else:
        seen.keep()
    return faults


def check(root: Path, sources: list[Path]) -> list[str]:
    """The faults of these sources, and of the headers that they include."""
    if Seen(root, sources).still() or all(Seen(root, [source]).still() for source in sources):
        return []
    if not found(root, sources):
        return []
    return [fault for source in sources for fault in found(root, [source])]


def groups(root: Path) -> list[list[Path]]:
    """All sources, those of a folder together."""
    found = []
    for folder in sorted({path.parent for top in ("csrc", "bench") for path in (root / top).rglob("*.cpp")}):
        if folder.relative_to(root).as_posix() not in OUTSIDE:
            sources = sorted(folder.glob("*.cpp"))
            found += [sources[at : at + TOGETHER] for at in range(0, len(sources), TOGETHER)]
    return found


def main(root: Path = ROOT) -> int:
    everything = groups(root)
    left_out = [folder for folder in PACKAGES if (root / folder).exists() and package(folder) is None]
    everything = [sources for sources in everything if sources[0].parent.relative_to(root).as_posix() not in left_out]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda sources: check(root, sources), everything))
    faults = dict.fromkeys(fault for answer in answers for fault in answer)  # one of a header comes once
    for fault in faults:
        print(fault)
    files = sum(map(len, everything))
    words = [f"{folder} (this Python has no {PACKAGES[folder][0]})" for folder in left_out]
    print(f"locks: {files} files, {len(faults)} faults" + (f"; NOT LOOKED AT: {', '.join(words)}" if words else ""))
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
