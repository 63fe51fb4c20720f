"""Each command that a page shows is run, and prints what the page shows. (tests/net has the page of two hosts.)

Of lines only what is the same everywhere is compared: a number, an address of a device and the host's name may be others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *("start/laptop.md", "start/mixed-fleet.md", "start/nccl-program.md"),
    *("howto/c.md", "howto/find-a-hang.md", "howto/find-slow.md", "howto/read-explain.md", "howto/survive-failures.md"),
)
# What sets the machine up and what is for the reader's own program is not run; nor is the training, which `make demo` runs.
SET_UP = ("make build", "source .venv", "python scripts/vendor_headers.py")
LEFT_OUT = ("./program", "train_digits.py", "torchfrtrace", "torchrun ...")
FAILS = "hang.py"  # as it is meant to


def blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def plain(line: str) -> str:
    line = re.sub(r"isthmus works, without .*", "isthmus works", re.sub(r"digest +\w+", "digest", line))
    line = re.sub(r"[0-9A-Fa-f]{4}:01:00\.0", "BUS", line.replace("├", "└"))
    line = re.sub(r"^  (rank \d+) .*\d%.*", r"\1 and its shares", line)  # of its time (isthmus trace)
    line = re.sub(r"\b[\d.e+]+ (?:s|ms|us)\b", "TIME", line)
    return re.sub(r"\d+", "#", re.sub(r"host \S+ \(.*?\)", "host", line)).strip()


def run(script: str, folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ISTHMUS_", "MASTER_", "REHEARSAL_"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    limits: dict[str, Any] = {"timeout": patient(120), "stdin": subprocess.DEVNULL}
    ended = subprocess.run(["bash", "-euc", script], cwd=folder, env=env, text=True, capture_output=True, **limits)
    assert (ended.returncode == 0) != (FAILS in script), f"{script}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("name", PAGES)
def test_the_page_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    if name == "start/nccl-program.md" and not (ROOT / "build" / "vendor-headers" / "nccl.h").is_file():
        assert not os.environ.get("CI"), "scripts/vendor_headers.py fetches the headers"
        pytest.skip("no vendor's headers in build/vendor-headers: scripts/vendor_headers.py fetches them")
    for place in ("examples", "build"):
        (tmp_path / place).symlink_to(ROOT / place)
    said = ""
    for language, text in blocks(DOCS / name):
        text = text.replace("/tmp/", f"{tmp_path}/")
        if language == "python":
            named = re.match(r"# (\w+\.py)$", text.partition("\n")[0])
            (tmp_path / (named[1] if named else "first.py")).write_text(text)
        elif language == "text":
            printed = {plain(line) for line in said.split("\n")}
            assert [line for line in text.split("\n") if said and plain(line) not in printed | {"...", ""}] == [], said
        elif not language:
            script = "\n".join(line for line in text.split("\n") if not line.startswith(SET_UP))
            said = "" if not script.strip() or any(word in script for word in LEFT_OUT) else run(script, tmp_path)
