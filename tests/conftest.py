"""What holds for all tests: where they find each other, which share of a long product is run, in which order, and by whom.

  @pytest.mark.product(4)   the cases of this test are a long product, of which a run with --share takes a quarter
  @pytest.mark.everything   only in `make test-all`: minutes of work, or what depends on other people (an index, a mirror)
  @pytest.mark.computes     its time goes into values, imports or one command, hardly into waiting: not in scripts/soak.py

With --part, which scripts/part.py writes, a run of a tree that hardly differs from a green one takes some files whole, of
every other one a share of its tests, and tests that failed.

Workers of pytest-xdist take a few tests of a file at a time. A file with `TOGETHER = "word"` goes to one worker whole, with
all other files of that word: what its tests share is made once. So does a file that has fixtures for the whole of it.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from share import chosen

HERE = Path(__file__).resolve().parent
CHUNK = 6  # tests that a worker takes at a time
# With it Python writes a line and its end apart, and the lines of ranks that share a pipe run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)
# Rank processes import what their test's functions name.
if str(HERE) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("isthmus")
    share = os.environ.get("SUITE_SHARE", "all")
    group.addoption("--share", default=share, help="the share of each long product: any text, or 'all' (default)")
    group.addoption("--one-in", default=1, type=int, help="of each file one test in so many, which the share chooses")
    group.addoption("--shuffle", default="", help="runs the tests in a random order that this text decides")
    # Not left to the processes that tests start, and their pytest.
    part = os.environ.pop("SUITE_PART", "")
    group.addoption("--part", default=part, help="which tests to run (scripts/part.py); the default is SUITE_PART's")
    group.addoption("--everything", action="store_true", help="also what only `make test-all` runs")


def pytest_configure(config: pytest.Config) -> None:
    for line in (__doc__ or "").splitlines():
        name, _, text = line.strip().partition("   ")
        if name.startswith("@pytest.mark."):
            config.addinivalue_line("markers", f"{name.removeprefix('@pytest.mark.')}: {text.strip()}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    share, shuffle = config.getoption("--share"), config.getoption("--shuffle")
    return [f"share {share} of the long products"] * (share != "all") + [f"order {shuffle}"] * bool(shuffle)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    products: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    left_out: set[str] = set()
    for item in items:
        if mark := item.get_closest_marker("product"):
            products[item.nodeid.partition("[")[0], mark.args[0]].append(item)
        if item.get_closest_marker("everything") and not config.getoption("--everything"):
            left_out.add(item.nodeid)
    for (_, of), cases in products.items():
        names = {case.nodeid for case in cases}
        left_out |= names - chosen(names, config.getoption("--share"), of)
    part = json.loads(config.getoption("--part") or "{}")
    if (of := config.getoption("--one-in")) > 1:
        names = {item.nodeid for item in items} - left_out
        left_out |= outside({"whole": part.get("whole", []), "seed": config.getoption("--share"), "of": of}, names)
    if part:
        left_out |= outside(part, [item.nodeid for item in items if item.nodeid not in left_out])
        left_out -= set(part["failed"])
    # A test that is asked for by its name is run, whatever its share.
    left_out -= {name for name in left_out if any(name in str(asked) for asked in config.args)}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    if config.getoption("--shuffle"):
        random.Random(config.getoption("--shuffle")).shuffle(items)


def outside(part: dict[str, Any], names: Iterable[str]) -> set[str]:
    """The tests that are not of this part."""
    files: dict[str, set[str]] = defaultdict(set)
    for name in names:
        files[name.partition("::")[0]].add(name)
    return {
        name
        for file, tests in files.items()
        if file not in part["whole"]
        for name in tests - chosen(tests, part["seed"], part["of"])
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if part := json.loads(terminalreporter.config.getoption("--part") or "{}"):
        whole = ", ".join(Path(file).name for file in part["whole"]) or "nothing"
        again = f", {len(part['failed'])} that failed" if part["failed"] else ""
        terminalreporter.write_line(f"part of the suite: whole {whole}{again}; of every other file one test in {part['of']}")


@functools.cache
def together(file: str) -> str:
    """What the file's tests are kept together under, or nothing. Read from its text: who deals has not imported it."""
    text = (HERE.parent / file).read_text()
    if word := re.search(r'^TOGETHER = "([^"]+)"', text, re.MULTILINE):
        return word[1]
    return file if re.search(r"""scope=["'](module|package|class)""", text) else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Dealer(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.scopes: dict[str, str] = {}
            self.seen: Counter[str] = Counter()

        def _split_scope(self, nodeid: str) -> str:
            if nodeid not in self.scopes:
                file = nodeid.partition("::")[0]
                self.scopes[nodeid] = together(file) or f"{file} {self.seen[file] // CHUNK}"
                self.seen[file] += 1
            return self.scopes[nodeid]

    return Dealer(config, log)
