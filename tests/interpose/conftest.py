"""Each front door, and small libraries and programs made for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doors import DOORS, HERE, Door, client, compile_c, linked


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """A test that takes this is run for all of them."""
    return DOORS[request.param]


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The vendors' clients: linked against the library by its SONAME, without a folder to find it in."""
    folder = tmp_path_factory.mktemp("clients")
    built = {}
    for name, door in DOORS.items():
        path = built[name] = folder / f"client-{name}"
        # What the libraries need themselves is found when the program runs.
        compile_c(*client(door), "-o", path, *linked(door))
    return built


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """fake.c with these macros, as a library of this name in a folder of its own; an HCCL, if the name says so."""

    def build(soname: str = "libnccl.so.2", folder: str = "fake", *macros: str) -> Path:
        path = tmp_path / folder / soname
        path.parent.mkdir(parents=True, exist_ok=True)
        defined = [f"-D{macro}" for macro in macros]
        source = HERE / ("fake_hccl.c" if "hccl" in soname else "fake.c")
        compile_c(*defined, "-shared", "-fPIC", f"-Wl,-soname,{soname}", source, "-o", path, "-ldl")
        return path

    return build
