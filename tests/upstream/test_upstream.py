"""PyTorch's own distributed tests pass on this backend: those of passing/*.txt, each a case of its own.

A list is named after how it is run, MASK-WORLD.txt (see runner.py), and was made with torch 2.13. A test that is in no list
needs CUDA, or a name that torch hard-codes, or sparse tensors. To renew a list: run runner.py without --only, and keep what
passed and is in no other list.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LISTS = sorted((HERE / "passing").glob("*.txt"))
CASES = [(path.stem, name) for path in LISTS for name in path.read_text().split()]
SECONDS = 900


@functools.cache
def outcomes(way: str) -> tuple[dict[str, str], str]:
    """Runs a list once; what became of each test, and all that was said."""
    mask, world = way.split("-")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        only = HERE / "passing" / f"{way}.txt"
        said = subprocess.run(
            [sys.executable, HERE / "runner.py", "--mask", mask, "--world", world, "--only", only, "--out", out],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        assert said.returncode == 0, said.stdout[-4000:]
        words: dict[str, str] = json.loads(out.read_text())
        return words, said.stdout


def about(name: str, said: str) -> str:
    """The part of the output that ends with the verdict on one test, and the reason after it."""
    before, _, after = said.partition(f"== {name}: ")
    return before.rpartition("\n== ")[2][-4000:] + after.partition("\n== ")[0][-4000:]


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(("way", "name"), CASES, ids=[f"{way}-{name}" for way, name in CASES])
def test_upstream(way: str, name: str) -> None:
    words, said = outcomes(way)
    assert words[name] == "passed", about(name, said)


def test_no_test_is_listed_twice() -> None:
    names = [name for _, name in CASES]
    assert len(names) == len(set(names)) and len(names) > 100
