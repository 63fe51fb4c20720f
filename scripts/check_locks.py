#!/usr/bin/env python3
"""Whether every access of what a lock guards holds the lock (csrc/base/lock.hpp): clang's -Wthread-safety over csrc/.

Half of clang's time goes into headers, so several sources of a folder are read at once. Where that finds something, each of
them is read alone: it may be no more than two names that collide. Prints one line a fault; exit status 1 if there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Those that may include base/: faces and csrc/rehearsal have locks of the standard library.
FLOORS = (
    *("base", "net", "bootstrap", "link", "device", "ccl", "p2p", "plan", "topology"),
    *("reduce", "process", "engine", "collective", "messages", "rank", "comm", "observe", "api"),
)
TOGETHER = 8  # sources that are read at once
COMMAND = (
    *("clang++", "-fsyntax-only", "-std=c++20", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"),
    "-DISTHMUS_ASSERTIONS=1",
    # What the build gives reduce/kernels.cpp for each instruction set.
    *('-DISTHMUS_REDUCE_NAME="scalar"', "-DISTHMUS_REDUCE_TABLE=kTableScalar", "-DHWY_COMPILE_ONLY_SCALAR"),
)
FAULT = re.compile(r"^\S+:\d+:\d+: (?:fatal )?error: ")


def said(root: Path, sources: list[Path]) -> list[str]:
    """What clang says of these sources, as one file: a line a fault."""
    text = "".join(f'#include "{source}"\n' for source in sources)
    result = subprocess.run(
        [*COMMAND, "-I", root / "csrc", "-I", root / "csrc" / "include", "-x", "c++", "-"],
        input=text,
        text=True,
        capture_output=True,
    )
    if result.returncode == 0:
        return []
    faults = [line.replace(f"{root}/", "") for line in result.stderr.splitlines() if FAULT.match(line)]
    return faults or [f"clang++ failed on {', '.join(map(str, sources))}: {result.stderr.strip()}"]


def check(root: Path, sources: list[Path]) -> list[str]:
    """The faults of these sources, and of the headers that they include."""
    if not said(root, sources):
        return []
    return [fault for source in sources for fault in said(root, [source])]


def groups(root: Path) -> list[list[Path]]:
    """All sources, those of a folder together."""
    found = []
    for floor in FLOORS:
        for folder in sorted({path.parent for path in (root / "csrc" / floor).rglob("*.cpp")}):
            sources = sorted(folder.glob("*.cpp"))
            found += [sources[at : at + TOGETHER] for at in range(0, len(sources), TOGETHER)]
    return found


def main(root: Path = ROOT) -> int:
    everything = groups(root)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda sources: check(root, sources), everything))
    faults = dict.fromkeys(fault for answer in answers for fault in answer)  # one of a header comes once
    for fault in faults:
        print(fault)
    files = sum(map(len, everything))
    print(f"locks: {files} files, {len(faults)} faults")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
