"""docs/reference: what the pages say is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import isthmus
from patience import patient

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def said(*command: str) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(60))
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_pages_are_what_the_script_makes() -> None:
    said(sys.executable, "scripts/reference.py", "--check")


def test_every_function_and_type_of_the_header_has_a_heading() -> None:
    header = (ROOT / "csrc" / "include" / "isthmus" / "isthmus.h").read_text()
    functions = re.findall(r"^ISTHMUS_API [^;(]*?(isthmus_\w+)\(", header, re.M)
    types = re.findall(r"^\} (\w+);", header, re.M) + re.findall(r"^typedef struct \w+ \*(\w+);", header, re.M)
    page = (REFERENCE / "c.md").read_text()
    assert len(functions) > 60 and len(types) > 6
    assert [name for name in (*functions, *types) if f"\n### `{name}`\n" not in page] == []


def test_every_public_name_of_python_is_there() -> None:
    pages = (REFERENCE / "python.md").read_text() + (REFERENCE / "errors.md").read_text()
    assert [name for name in isthmus.__all__ if f"`{name}" not in pages and f"isthmus.{name}`" not in pages] == []
    for kind in (isthmus.Comm, isthmus.Work):
        assert [n for n in dir(kind) if not n.startswith("_") and f"### `{kind.__name__}.{n}" not in pages] == []


def test_the_flags_of_the_benchmark_are_those_that_its_page_lists() -> None:
    page = (ROOT / "docs" / "howto" / "bench.md").read_text()
    section = page[page.index("### Flags of nccl-tests") : page.index("The exit status is 0")]
    listed = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", section))
    known = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", said(sys.executable, "-m", "isthmus", "bench", "--help")))
    assert sorted(flag for flag in listed if flag not in known) == []
    ours = known - {"-h", "--help", "--version"}
    short = {flag for flag in ours if re.fullmatch("-[A-Za-z]", flag)}
    assert sorted(short - listed) == []
