#!/usr/bin/env python3
"""Installs torchft for the tests into the folder that is given, beside .venv: it wants much that nothing else here wants.

tests/upstream/torchft.txt says which releases, by their digests. Standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from wheels import tried

REQUIREMENTS = Path(__file__).resolve().parent.parent / "tests" / "upstream" / "torchft.txt"


def complete(folder: Path) -> bool:
    return (folder / "complete").is_file()


def assemble(folder: Path) -> None:
    """Run by the Python for which it installs."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--require-hashes", "--no-compile", "--target", str(folder), "--requirement", str(REQUIREMENTS)]
    tried(lambda: subprocess.run(command, check=True, stdin=subprocess.DEVNULL), subprocess.CalledProcessError)
    (folder / "complete").touch()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: torchft_packages.py FOLDER")
    assemble(Path(sys.argv[1]))
    print(Path(sys.argv[1]))
