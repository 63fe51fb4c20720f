"""PyTorch's own distributed tests pass on this backend: those of passing/*.txt, each a case of its own.

A list is named after how it is run, MASK-WORLD.txt (see runner.py), and was made with torch 2.13. A test that is in no list
needs CUDA, or a name that torch hard-codes, or sparse tensors. To renew a list: run runner.py without --only, and keep what
passed and is in no other list. `make test` runs the longest list, `make test-all` all three.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from patience import patient

HERE = Path(__file__).resolve().parent
LISTS = sorted((HERE / "passing").glob("*.txt"))
CASES = [(path.stem, name) for path in LISTS for name in path.read_text().split()]
ALWAYS = "mpi-3"
TOGETHER = "upstream"  # all cases of a list are one process's
SECONDS = patient(900)


def case(way: str, name: str) -> object:
    return pytest.param(way, name, id=f"{way}-{name}", marks=[] if way == ALWAYS else [pytest.mark.everything])


@functools.cache
def outcomes(way: str) -> tuple[dict[str, str], str]:
    """Runs a list once; what became of each test, and all that was said."""
    mask, world = way.split("-")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        only = HERE / "passing" / f"{way}.txt"
        command = [sys.executable, HERE / "runner.py", "--mask", mask, "--world", world, "--only", only, "--out", out]
        try:
            said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired as error:  # it is not to be run again for each case
            begun = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            return {}, f"{begun}\nnot over within {SECONDS:.0f} s"
        words: dict[str, str] = json.loads(out.read_text()) if said.returncode == 0 else {}
        return words, said.stdout


def about(name: str, said: str) -> str:
    """The part of the output that ends with the verdict on one test, and the reason after it."""
    before, _, after = said.partition(f"== {name}: ")
    return before.rpartition("\n== ")[2][-4000:] + after.partition("\n== ")[0][-4000:]


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(("way", "name"), [case(way, name) for way, name in CASES])
def test_upstream(way: str, name: str) -> None:
    words, said = outcomes(way)
    assert words, said[-4000:]
    assert words[name] == "passed", about(name, said)


def test_no_test_is_listed_twice() -> None:
    names = [name for _, name in CASES]
    assert len(names) == len(set(names)) and len(names) > 100
