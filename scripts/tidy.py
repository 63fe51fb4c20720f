#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over the C++ sources of a configured build folder, several at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def check(build: Path, source: str) -> tuple[str, str]:
    """The source, and what clang-tidy says of it; empty if nothing."""
    result = subprocess.run(["clang-tidy", "-p", str(build), "--quiet", source], text=True, capture_output=True)
    return source, result.stdout if result.returncode != 0 or "warning:" in result.stdout else ""


def main(build: Path) -> int:
    commands = json.loads((build / "compile_commands.json").read_text())
    inside = {str(ROOT / "csrc"), str(ROOT / "bench")}
    files = sorted({c["file"] for c in commands if any(c["file"].startswith(f"{top}/") for top in inside)})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [answer for _, answer in pool.map(lambda f: check(build, f), files) if answer]
    print("\n".join(said))
    print(f"tidy: {len(files)} files, {len(said)} with findings")
    return 1 if said or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
