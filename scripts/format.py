#!/usr/bin/env python3
"""Checks the C++ sources with clang-format; with --write, formats them and sorts Python's imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent


def main() -> int:
    folders = [ROOT / top for top in ("csrc", "bench", "examples", "tests")]
    files = sorted(str(p) for top in folders for p in top.rglob("*") if p.suffix in (".cpp", ".hpp"))
    if "--write" in sys.argv[1:]:
        subprocess.run([TOOLS / "ruff", "check", "--select", "I", "--fix", ROOT], check=True)
        return subprocess.run([TOOLS / "clang-format", "-i", *files]).returncode
    said = subprocess.run([TOOLS / "clang-format", "--dry-run", "-Werror", *files], text=True, capture_output=True)
    wrong = sorted({line.split(":")[0] for line in said.stderr.splitlines() if "[-Wclang-format-violations]" in line})
    print("\n".join(str(Path(name).relative_to(ROOT)) for name in wrong))
    print(
        f"format: {len(files)} files, {len(wrong)} not as clang-format would have them" + (": make format" if wrong else "")
    )
    return said.returncode


if __name__ == "__main__":
    sys.exit(main())
