"""The part of the suite that shows what a small change broke, where everything was green before it.

`make test` runs everything, unless the tree differs in few files from one of which it has run everything in this directory,
and found it green (build/suite/green.json). Then it runs

  - what has a changed floor for its subject, whole: C++ programs of that floor and of those right above it, by the labels
    that CMakeLists.txt gives them, and the Python files that SUBJECTS names;
  - tests that were changed themselves, whole, and what failed in the runs since (build/suite/failed.json);
  - of everything else that stands on what changed a third in C++, and a sixth in Python, which the tree chooses;
  - all that is no test: style, types, locks, the installation, the demo.

What is compared is always the tree of that green run, so changes add up until they are too many. `make test WHOLE=1` runs
everything. So do CI, a clean clone, and each tree that what follows does not know enough of: needed() says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_layers import BELOW, allowed
from setup import STAMPS

MOST = 8  # files; more of them are no small change
OF = 3  # one part in so many is run of what only stands on what changed; run.sh has the number, too
# Of Python, where nearly every test stands on all floors: a third of its tests took two thirds of a run's processor time.
OF_PYTHON = 6
# The Python files whose subject a floor is: they run whole when it changed. base/ has no row: everything stands on it.
SUBJECTS = {
    "reduce": ("python/test_averages.py", "python/test_collectives.py"),
    "device": (
        *("python/test_blocking_launches.py", "python/test_pinned_memory.py", "faults/test_device_faults.py"),
        *("faults/test_device_init.py", "faults/test_device_lost.py", "faults/test_stuck_calls.py"),
    ),
    "net": ("net/test_hosts.py", "net/test_links.py", "net/test_streams.py", "faults/test_kill.py"),
    "topology": ("net/test_island_hosts.py", "python/test_rehearse_links.py", "python/test_tune.py"),
    "p2p": ("python/test_staging.py", "faults/test_sends.py"),
    "plan": ("python/test_plans.py", "python/test_explain.py", "python/test_leader_exchange.py"),
    "bootstrap": ("python/test_init.py", "net/test_hosts.py", "faults/test_kill.py", "faults/test_silence.py"),
    "link": ("net/test_helped.py", "net/test_links.py", "net/test_streams.py", "python/test_ucx.py"),
    "ccl": (
        *("python/test_islands.py", "python/test_library_matrix.py", "python/test_library_messages.py"),
        *("python/test_missing_libraries.py", "python/test_one_vendor.py"),
    ),
    "process": ("python/test_forks.py", "python/test_staging.py", "faults/test_device_init.py"),
    "engine": ("python/test_work.py", "faults/test_abort.py", "faults/test_order.py", "faults/test_stop.py"),
    "collective": ("python/test_collectives.py", "python/test_leader_exchange.py", "faults/test_device_stages.py"),
    "messages": ("python/test_library_messages.py", "faults/test_order.py", "faults/test_sends.py"),
    "rank": ("faults/test_abort.py", "faults/test_agree.py", "faults/test_kill.py", "faults/test_mismatch.py"),
    "comm": ("python/test_init.py", "faults/test_grow.py", "faults/test_shrink.py", "faults/test_split.py"),
    "observe": ("python/test_dump.py", "python/test_explain.py", "python/test_tune.py"),
    "api": ("python/test_arrays.py", "python/test_cffi_client.py", "python/test_library.py"),
    "docs": ("python/test_documentation.py", "python/test_pages.py", "python/test_package.py", "net/test_two_hosts_page.py"),
}


@dataclass(frozen=True)
class Tree:
    """What a run is of: the commit that is checked out, the files, and what the set-up has put beside them."""

    commit: str
    files: dict[str, str]
    beside: str

    @property
    def name(self) -> str:
        return digest("".join(f"{path} {data}\n" for path, data in sorted(self.files.items())).encode())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def git(root: Path, *words: str) -> str | None:
    asked = subprocess.run(["git", *words], cwd=root, text=True, capture_output=True)
    return asked.stdout if asked.returncode == 0 else None


def tree(root: Path, stamps: Path = STAMPS) -> Tree:
    """Without git it has no files, and is like none."""
    listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z") or ""
    paths = sorted({path for path in listed.split("\0") if path and (root / path).is_file()})
    # The stamp of the package is of files of the tree.
    beside = [path for path in sorted(stamps.glob("*")) if path.name not in ("lock", "package")]
    return Tree(
        (git(root, "rev-parse", "HEAD") or "").strip(),
        {path: digest((root / path).read_bytes()) + "x" * os.access(root / path, os.X_OK) for path in paths},
        digest("".join(f"{path.name} {path.read_text()}\n" for path in beside).encode()),
    )


@dataclass(frozen=True)
class Part:
    """What a run takes of the suite."""

    since: str  # the commit of the green run
    changed: tuple[str, ...]
    seed: str  # of the thirds and sixths: the tree's name
    floors: frozenset[str] = frozenset()  # that changed
    files: frozenset[str] = frozenset()  # of Python, that run whole
    programs: frozenset[str] = frozenset()  # of C++, whose sources changed
    failed: dict[str, list[str]] = field(default_factory=dict)  # of a stage; "" is the stage itself

    @property
    def third(self) -> int:
        return int(self.seed, 16) % OF

    @property
    def near(self) -> frozenset[str]:
        """The changed floors, and those right above them."""
        return self.floors | {floor for floor, below in BELOW.items() if self.floors & set(below)}

    def of_pytest(self, stage: str, whole: Iterable[str] = ()) -> str:
        """What tests/conftest.py is told by the environment; nothing where it shall run everything."""
        failed = self.failed.get(stage, [])
        if stage == "python" and "" in failed:
            return ""
        of = OF_PYTHON if stage == "python" else OF
        return json.dumps({"whole": sorted({*self.files, *whole}), "seed": self.seed, "of": of, "failed": failed})

    def told(self) -> list[str]:
        whole = sorted(self.near | {Path(name).name for name in (*self.files, *self.programs)})
        again = sum(map(len, self.failed.values()))
        return [
            f"{', '.join(self.changed) or 'nothing'}: all that differs from what was green of {self.since[:12]}.",
            f"Whole: {', '.join(whole) or 'nothing'}{f', and {again} that failed' if again else ''}. "
            f"Of what else stands on that: one third in C++ (number {self.third}), one sixth in Python.",
            "The rest is left out: `make test WHOLE=1` runs everything, as CI and a clean clone do.",
        ]


@dataclass
class Choice:
    """Of the tests that ctest has for a stage: which are run, which of these whole, and what runs again in one."""

    whole: list[str] = field(default_factory=list)
    thirds: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    again: dict[str, str] = field(default_factory=dict)  # GoogleTest's filter by the test's name

    @property
    def names(self) -> list[str]:
        return [*self.whole, *self.thirds]

    def told(self) -> str:
        return (
            f"{len(self.whole)} programs whole, a third of {len(self.thirds)}, "
            f"{len(self.left_out)} left out that stand on nothing that changed"
        )


def plain(name: str) -> str:
    """The program of a test that runs a part of one."""
    return re.sub(r"_\d+_of_\d+$", "", name)


def choose(part: Part, stage: str, tests: Iterable[tuple[str, Sequence[str]]]) -> Choice:
    """Of tests with their labels."""
    choice = Choice()
    failed: dict[str, list[str]] = {}
    for only in part.failed.get(stage, []):
        program, _, case = only.partition(":")
        failed.setdefault(program, []).append(case or "*")
    for name, labels in tests:
        stands = {label.removeprefix("stands_on_") for label in labels if label.startswith("stands_on_")}
        about = {label.removeprefix("about_") for label in labels if label.startswith("about_")}
        under = set().union(*(allowed(floor) for floor in stands if floor in BELOW))
        again = ":".join(failed.pop(plain(name), []))
        if again:
            choice.again[name] = again
        # What stands on the whole library has no floor for its subject but the one of its file.
        subject = about | (stands - {"api"})
        if not stands:  # clients in C, front doors: there is no third of a program, and pytest takes one by itself
            choice.whole.append(name)
        elif "" in part.failed.get(stage, []) or plain(name) in part.programs:
            choice.whole.append(name)
        elif part.floors & under and subject & part.near:
            choice.whole.append(name)
        elif part.floors & under or again:
            choice.thirds.append(name)
        else:
            choice.left_out.append(name)
    return choice


def sources(root: Path) -> dict[str, list[str]]:
    """The C++ test programs that are made of a file of tests/cpp."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests" / "cpp").glob("*.cmake")):
        for name, words in re.findall(r"isthmus_test\(\s*(\w+)\s+([^)]*)\)", path.read_text()):
            for source in re.findall(r"/(\w+_test\.cpp)", words):
                found.setdefault(source, []).append(name)
    return found


def importers(root: Path, now: Tree, module: str) -> set[str]:
    """The test files that take something of another one."""
    word = re.compile(rf"^(from|import) {module}\b", re.MULTILINE)
    tests = (path for path in now.files if re.fullmatch(r"tests/\w+/test_\w+\.py", path))
    return {path for path in tests if word.search((root / path).read_text())}


def needed(root: Path, now: Tree, green: Any, failed: dict[str, list[str]], environment: Any = os.environ) -> Part | str:
    """What to run of this tree; or why everything."""
    if environment.get("CI"):
        return "this is CI"
    if not isinstance(green, dict):
        return "no run of everything was green here since the last that was not"
    if not now.files or not now.commit:
        return "git does not know this tree"
    if git(root, "merge-base", "--is-ancestor", green["commit"], now.commit) is None:
        return f"{green['commit'][:12]}, of which everything was green, is no ancestor of what is checked out"
    if green["beside"] != now.beside:
        return "the set-up has changed what stands beside the tree"
    before = green["files"]
    changed = sorted(path for path in {*before, *now.files} if before.get(path) != now.files.get(path))
    if len(changed) > MOST:
        return f"{len(changed)} files have changed, more than {MOST}"
    floors, files, programs = set(), set(), set()
    known = sources(root)
    for path in changed:
        top, _, rest = path.partition("/")
        name = Path(path).name
        floor = rest.split("/")[0]
        if top == "csrc" and floor in SUBJECTS and path.endswith((".cpp", ".hpp")):
            floors.add(floor)
        elif top == "docs" and path.endswith(".md"):
            files |= {f"tests/{one}" for one in SUBJECTS["docs"]}
        elif re.fullmatch(r"tests/\w+/test_\w+\.py", path):
            files.add(path)
            files |= importers(root, now, Path(path).stem)
        elif path == f"tests/cpp/{name}" and name in known:
            programs |= set(known[name])
        else:
            return f"{path} may matter to everything"
    files |= {f"tests/{one}" for floor in floors for one in SUBJECTS[floor]}
    return Part(green["commit"], tuple(changed), now.name, frozenset(floors), frozenset(files), frozenset(programs), failed)


class Books:
    """What runs leave for later ones: the tree of which everything was green, and what failed since."""

    def __init__(self, folder: Path) -> None:
        self.green, self.failed = folder / "green.json", folder / "failed.json"

    def read(self) -> tuple[Any, dict[str, list[str]]]:
        failed = _read(self.failed)
        return _read(self.green), failed if isinstance(failed, dict) else {}

    def begin_everything(self) -> None:
        """Until it has ended well there is no green run: neither where this one is interrupted, nor where it fails."""
        self.green.unlink(missing_ok=True)

    def end(self, outcomes: Iterable[tuple[str, str, bool]], whole: Tree | None = None) -> None:
        """(stage, what ONLY calls the case, whether it was well) of all that ran. `whole`: everything ran, of this tree."""
        failed = {stage: dict.fromkeys(cases) for stage, cases in ({} if whole else self.read()[1]).items()}
        bad = False
        outcomes = list(outcomes)
        for stage, only, _ in outcomes:
            failed.get(stage, {}).pop(only, None)
        for stage, only, well in outcomes:  # a name may stand for several, of which one failed
            if not well:
                bad = True
                failed.setdefault(stage, {})[only] = None
        self.failed.write_text(json.dumps({stage: list(cases) for stage, cases in failed.items() if cases}, indent=1))
        if whole and not bad:
            files = {"commit": whole.commit, "beside": whole.beside, "files": whole.files}
            self.green.write_text(json.dumps(files, indent=1))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def listed(said: str) -> list[tuple[str, list[str]]]:
    """The tests with their labels."""
    found = []
    for test in json.loads(said[said.index("{") :])["tests"]:
        labels = [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"]
        found.append((test["name"], labels[0] if labels else []))
    return found
