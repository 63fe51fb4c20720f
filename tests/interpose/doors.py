"""The front doors that were built and the simulated vendors behind them, and how tests start programs and make them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# A build of a sanitizer, where one is named: then programs are linked against the doors, since its runtime must come first.
SANITIZER = os.environ.get("INTERPOSE_SANITIZER", "")
BUILD = Path(os.environ.get("INTERPOSE_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "scripts"))

preloaded = pytest.mark.skipif(bool(SANITIZER), reason="a door that is preloaded, and a sanitizer's runtime must come first")


@dataclass(frozen=True)
class Door:
    """One of the two libraries, and what stands for the vendor behind it."""

    library: str  # as the table calls it
    soname: str
    setting: str
    simulated: Path  # a folder with the vendor's libraries

    @property
    def path(self) -> Path:
        return BUILD / "interpose" / self.soname

    @property
    def real(self) -> Path:
        return self.simulated / self.soname


DOORS = {
    "nccl": Door("nccl", "libnccl.so.2", "ISTHMUS_REAL_NCCL", BUILD / "rehearsal" / "nvidia"),
    "rccl": Door("rccl", "librccl.so.1", "ISTHMUS_REAL_RCCL", BUILD / "rehearsal" / "amd"),
}


def run(*command: str | Path, seconds: float = 60, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """A program with these variables, and none of Isthmus, the loader or a rehearsal besides."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ISTHMUS_", "LD_", "REHEARSAL_", "NCCL_"))}
    given = {name: str(value) for name, value in environment.items()}
    words = [str(word) for word in command]
    return subprocess.run(words, env=kept | given, text=True, capture_output=True, timeout=seconds, check=False)


def said(*command: str | Path, **environment: str | Path) -> str:
    """What a program printed that ended well and said nothing to stderr."""
    ended = run(*command, **environment)
    assert (ended.returncode, ended.stderr) == (0, ""), f"exit status {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def compile_c(*words: str | Path, compiler: str = "cc") -> None:
    command = [compiler, "-Wall", "-Wextra", "-Werror", *map(str, words)]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
