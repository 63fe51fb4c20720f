#!/usr/bin/env python3
"""Brings a machine to the point where `make GOAL` can do its work: system packages, .venv, PyTorch, the built package.

Each step leaves a stamp under build/stamps with a digest of what it was made from, and is done again only when that changed.
Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compile_commands
import oneccl
import system_packages
import torchft_packages
import vendor_headers
import vllm_wrappers
import wheels

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = ROOT / "build" / "stamps"
TORCH = "torch==2.13.0"
ONECCL = ROOT / "build" / "oneccl"  # for the tests, where there are wheels of it
VENDOR_HEADERS = ROOT / "build" / "vendor-headers"  # for tests/vendor
VLLM = ROOT / "build" / "vllm"  # for tests/interpose
TORCHFT = ROOT / "build" / "torchft"  # for tests/upstream
RELEASE = ROOT / "build" / "release"  # where the package is built
WHEEL = ROOT / "build" / "wheel"  # what is installed into .venv; one wheel
DOCS_VENV = ROOT / "build" / "docs-venv"  # what builds the site of docs/, apart from .venv
GOALS = ("build", "demo", "test", "test-all", "bench", "lint", "docs")


def build_environment() -> dict[str, str]:
    """The environment of every build, and of tests. ccache, where there is one, then recognises the same file in another
    directory. What Python has compiled is kept: else each worker of pytest rewrites all test files, which takes it 4 s."""
    env = dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env.setdefault("CCACHE_BASEDIR", str(ROOT))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    env["PATH"] = f"{VENV / 'bin'}{os.pathsep}{env['PATH']}"
    return env


def warnings_are_errors() -> str:
    """In CI, and where what CI built is there: else all of it would be built anew for one flag."""
    cache = RELEASE / "CMakeCache.txt"
    built_so = cache.exists() and "ISTHMUS_WERROR:BOOL=ON" in cache.read_text()
    return "ON" if os.environ.get("CI") or built_so else "OFF"


def digest(parts: Iterable[str | Path]) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        name = str(part.relative_to(ROOT)) if isinstance(part, Path) else "text"
        state.update(f"{name} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()


def sources(*places: str) -> list[Path]:
    """Every file below the places, in a stable order, without what Python leaves behind."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(found)


def step(name: str, key: str, present: Callable[[], bool], act: Callable[[], None]) -> None:
    """Runs `act` unless its stamp holds `key` and `present` finds its result."""
    stamp = STAMPS / name
    if stamp.exists() and stamp.read_text() == key and present():
        return
    begin = time.monotonic()
    print(f"setup: {name} ...", flush=True)
    act()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    print(f"setup: {name} done in {time.monotonic() - begin:.0f} s", flush=True)


def run(*command: str | Path) -> None:
    """Runs a command quietly; shows all that it said if it fails."""
    result = subprocess.run(
        [str(c) for c in command],
        cwd=ROOT,
        env=build_environment(),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if result.returncode != 0:
        print(result.stdout)
        raise SystemExit(f"setup: failed with exit status {result.returncode}: {' '.join(str(c) for c in command)}")


def answer(python: Path | str, code: str) -> str:
    """What `python -c code` prints; empty if it fails."""
    try:
        result = subprocess.run([str(python), "-c", code], text=True, capture_output=True, stdin=subprocess.DEVNULL)
    except OSError:  # no such interpreter, or a link to one that is gone
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


FIND_TOOLS = "import importlib.util as u; print(all(map(u.find_spec, ('scikit_build_core', 'pytest', 'rich'))) or '')"
FIND_TORCH = "import importlib.metadata as m; print(m.version('torch'))"


def venv_works() -> bool:
    return bool(answer(PYTHON, "print('yes')"))


def refuse_another_python() -> None:
    """PYTHON=... makes .venv. One that is there must be of that Python: else the build would not be what was asked for."""
    chosen = os.environ.get("CHOSEN_PYTHON")
    theirs = answer(PYTHON, "import sys; print('%d.%d' % sys.version_info[:2])")
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    if chosen and theirs and theirs.strip() != mine:
        raise SystemExit(
            f"PYTHON={chosen} is Python {mine}, and .venv is there and of Python {theirs.strip()}: "
            "`make distclean` removes it, and then make builds one anew"
        )


def make_venv() -> None:
    if venv_works():
        return
    # An interpreter that already has torch (a vendor's container, say) keeps it: the environment then sees its packages.
    keep = ["--system-site-packages"] if answer(sys.executable, FIND_TORCH) else []
    run(sys.executable, "-m", "venv", "--clear", *keep, VENV)


def install_torch() -> None:
    """A PyTorch that somebody else has installed stays. One that stands here from an older TORCH goes."""
    installed_here = STAMPS / "torch.version"
    there = answer(PYTHON, FIND_TORCH)
    if there and not (installed_here.exists() and installed_here.read_text() == there):
        return
    index = os.environ.get("TORCH_INDEX")
    run(PYTHON, "-m", "pip", "install", *(["--index-url", index] if index else []), TORCH)
    installed_here.write_text(answer(PYTHON, FIND_TORCH))


def assertions(goal: str) -> str:
    """Whether the package of .venv checks its invariants (base/assert.hpp). Other wheels do not, nor what is measured."""
    return "OFF" if goal == "bench" else "ON"


def begin_package(checks: str) -> None:
    """Compiles what needs neither Python nor PyTorch, while these are fetched. install_package goes on in that folder."""
    parts = ("isthmus", "rehearsal_all", "interpose_all", "isthmus-bench")
    options = (f"-DISTHMUS_WERROR={warnings_are_errors()}", f"-DISTHMUS_ASSERTIONS={checks}")
    configure = ("cmake", "-S", ".", "-B", RELEASE, "-G", "Ninja", *options)
    for command in (configure, ("cmake", "--build", RELEASE, "--target", *parts)):
        run(*command)


def install_package(checks: str) -> None:
    # In the environment's own torch and build tools (no isolation), and in a build directory that stays: a change compiles
    # only what it touches. It is the wheel that `pip install .` makes.
    shutil.rmtree(WHEEL, ignore_errors=True)
    pip = (PYTHON, "-m", "pip")
    defined = {"ISTHMUS_WERROR": warnings_are_errors(), "ISTHMUS_ASSERTIONS": checks}
    defines = (f"-Ccmake.define.{name}={value}" for name, value in defined.items())
    options = (f"-Cbuild-dir={RELEASE.relative_to(ROOT)}", *defines)
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", WHEEL, *options, ".")
    run(*pip, "install", "--no-deps", "--force-reinstall", next(WHEEL.glob("*.whl")))


def fetch_for_tests(interpreter: str) -> None:
    """What the tests look at of other people's: Intel's library, torchft, the vendors' headers, vLLM's wrappers."""
    if platform.machine() == "x86_64":
        recipe = digest([Path(oneccl.__file__), Path(wheels.__file__)])
        step("oneccl", recipe, lambda: oneccl.complete(ONECCL), lambda: run(PYTHON, oneccl.__file__, ONECCL))
        recipe = digest([Path(torchft_packages.__file__), torchft_packages.REQUIREMENTS, interpreter])
        script = torchft_packages.__file__
        step("torchft", recipe, lambda: torchft_packages.complete(TORCHFT), lambda: run(PYTHON, script, TORCHFT))
    for name, module, folder in (("vendor-headers", vendor_headers, VENDOR_HEADERS), ("vllm", vllm_wrappers, VLLM)):
        script = Path(module.__file__)
        recipe = digest([script, Path(wheels.__file__)])
        step(name, recipe, lambda: module.complete(folder), lambda: run(PYTHON, script, folder))  # noqa: B023


def installed() -> bool:
    return bool(answer(PYTHON, "import importlib.util as u, sys; sys.path.pop(0); print(u.find_spec('isthmus').origin)"))


def main(goal: str) -> None:
    if goal not in GOALS:
        raise SystemExit(f"usage: setup.py {'|'.join(GOALS)}")
    if sys.hexversion < 0x030A0000:
        raise SystemExit(f"Isthmus needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}")
    refuse_another_python()
    STAMPS.mkdir(parents=True, exist_ok=True)
    with open(STAMPS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once do the work once
        system_packages.provide(goal if goal in ("docs", "test", "test-all") else "build")
        if goal in ("docs", "test-all"):
            prepare_docs()
        if goal == "docs":
            return
        with ThreadPoolExecutor(2) as beside:
            begun = beside.submit(begin_package, assertions(goal)) if goal != "lint" and not venv_works() else None
            interpreter = prepare_venv()
            torch = digest([TORCH, interpreter])
            if goal == "lint":  # mypy looks at the types of PyTorch
                return step("torch", torch, lambda: bool(answer(PYTHON, FIND_TORCH)), install_torch)
            fetched = beside.submit(fetch_for_tests, interpreter) if goal in ("test", "test-all") else None
            step("torch", torch, lambda: bool(answer(PYTHON, FIND_TORCH)), install_torch)
            if begun:
                begun.result()
            step("package", package_key(interpreter, assertions(goal)), installed, lambda: install_package(assertions(goal)))
            compile_commands.write()
            if fetched:
                fetched.result()


def prepare_docs() -> None:
    """An environment with what requirements-docs.txt names and nothing else: no page imports Isthmus."""
    requirements = ROOT / "requirements-docs.txt"
    interpreter = DOCS_VENV / "bin" / "python"

    def make() -> None:
        run(sys.executable, "-m", "venv", "--clear", DOCS_VENV)
        run(interpreter, "-m", "pip", "install", "-r", requirements)

    key = digest([requirements, sys.version])
    step("docs", key, lambda: bool(answer(interpreter, "import material, mkdocs; print('yes')")), make)


def prepare_venv() -> str:
    """.venv with what requirements-dev.txt names; what identifies its interpreter."""
    step("venv", "1", venv_works, make_venv)
    interpreter = answer(PYTHON, "import sys; print(sys.version, sys.prefix)")
    requirements = ROOT / "requirements-dev.txt"
    step(
        "requirements",
        digest([requirements, interpreter]),
        lambda: bool(answer(PYTHON, FIND_TOOLS)),
        lambda: run(PYTHON, "-m", "pip", "install", "-r", requirements),
    )
    return interpreter


def package_key(interpreter: str, checks: str) -> str:
    """Of everything that the package is made from."""
    inputs = sources("CMakeLists.txt", "cmake", "csrc", "bench", "python", "pyproject.toml")
    inputs += sources("LICENSE", "LICENSES", "docs")
    inputs += sources("scripts/interpose_entries.py")  # which the build runs
    inputs = [p for p in inputs if "results" not in p.parts]
    return digest([*inputs, interpreter, answer(PYTHON, FIND_TORCH), warnings_are_errors(), checks])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) == 2 else "")
