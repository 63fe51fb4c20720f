#!/usr/bin/env python3
"""Writes compile_commands.json at the root, where editors (clangd) look: how each source of the last build is compiled.

CMake's own file, in build/release, lists what the compiler was given: several sources at a time (ISTHMUS_UNITY). An editor
wants each source by itself. `make build` runs this.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"


def expanded(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each entry of CMake's; in place of one for a file that includes sources, one for every source."""
    for entry in entries:
        file = Path(entry["directory"], entry["file"])
        if "Unity" not in file.parts or not file.exists():
            yield entry
            continue
        for source in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M):
            yield {**entry, "file": source, "command": entry["command"].replace(str(entry["file"]), source)}


def write(build: Path = BUILD, to: Path = ROOT / "compile_commands.json") -> bool:
    """Whether there was a build to write it from. The file is left alone where nothing has changed."""
    made = build / "compile_commands.json"
    if not made.exists():
        return False
    text = json.dumps(list(expanded(json.loads(made.read_text()))), indent=1)
    if not to.exists() or to.read_text() != text:
        to.write_text(text)
    return True


if __name__ == "__main__":
    sys.exit(0 if write() else "no build in build/release: make build")
