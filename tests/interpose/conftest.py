"""Either front door, and small libraries and programs made for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doors import DOORS, HERE, SANITIZER, Door, compile_c


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """A test that takes this is run for both."""
    return DOORS[request.param]


def build_clients(source: str, folder: Path) -> dict[str, Path]:
    """For either vendor: linked against the library by its SONAME, without a folder to find it in."""
    built = {}
    for name, door in DOORS.items():
        runtime = "libcuda.so.1" if name == "nccl" else "libamdhip64.so.6"
        path = built[name] = folder / f"{source}-{name}"
        libraries = [door.path if SANITIZER else door.real, door.simulated / runtime]
        amd = ["-DAMD"] if name == "rccl" else []
        # What the libraries need themselves is found when the program runs.
        linked = ["-Wl,--allow-shlib-undefined", "-pthread", "-ldl"]
        if SANITIZER:
            linked.append(f"-fsanitize={SANITIZER}")
        compile_c(*amd, HERE / f"{source}.c", "-o", path, *libraries, *linked)
    return built


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """client.c for either vendor."""
    return build_clients("client", tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """script.c for either vendor."""
    return build_clients("script", tmp_path_factory.mktemp("scripted"))


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """fake.c with these macros, as a library of this name in a folder of its own."""

    def build(soname: str = "libnccl.so.2", folder: str = "fake", *macros: str) -> Path:
        path = tmp_path / folder / soname
        path.parent.mkdir(parents=True, exist_ok=True)
        defined = [f"-D{macro}" for macro in macros]
        compile_c(*defined, "-shared", "-fPIC", f"-Wl,-soname,{soname}", HERE / "fake.c", "-o", path, "-ldl")
        return path

    return build
