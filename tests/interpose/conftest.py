"""Each front door, and small libraries and programs made for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import isthmus
from doors import DOORS, HERE, SANITIZER, Door, client, compile_c, linked
from spanning import Rank


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    """A test that takes this is run for all of them."""
    return DOORS[request.param]


def build_clients(source: str, folder: Path, doors: Iterable[str], *options: str | Path) -> dict[str, Path]:
    """For each of these: linked against the library by its SONAME, without a folder to find it in."""
    built = {}
    for name in doors:
        path = built[name] = folder / f"{source}-{name}"
        # What the libraries need themselves is found when the program runs.
        watched = [f"-fsanitize={SANITIZER}"] if SANITIZER else []
        compile_c(*options, *client(DOORS[name], source), "-o", path, *linked(DOORS[name]), *watched)
    return built


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """client.c for NCCL and RCCL, client_hccl.c for HCCL."""
    return build_clients("client", tmp_path_factory.mktemp("clients"), DOORS)


@pytest.fixture(scope="session")
def own_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is linked against libisthmus, as isthmus-config says."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.c").write_text(
        "#include <isthmus/isthmus.h>\n#include <stdio.h>\nint main(void) { return puts(isthmus_version()) < 0; }\n"
    )
    package = Path(isthmus.__file__).parent
    linked = (f"-L{package}", "-listhmus", f"-Wl,-rpath,{package}")
    compile_c(f"-I{isthmus.get_include()}", folder / "own.c", *linked, "-o", folder / "own")
    return folder / "own"


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """script.c for NCCL and RCCL, script_hccl.c for HCCL."""
    return build_clients("script", tmp_path_factory.mktemp("scripted"), DOORS)


@pytest.fixture(scope="session")
def scripted_per_thread(scripted: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those for NCCL and RCCL as a compiler makes them whose null stream is each thread's own."""
    folder, options = tmp_path_factory.mktemp("scripted_per_thread"), ("-include", HERE / "per_thread_like.h")
    return scripted | build_clients("script", folder, ("nccl", "rccl"), *options)


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """fake.c with these macros, as a library of this name in a folder of its own; an HCCL, if the name says so."""

    def build(soname: str = "libnccl.so.2", folder: str = "fake", *macros: str) -> Path:
        path = tmp_path / folder / soname
        path.parent.mkdir(parents=True, exist_ok=True)
        defined = [f"-D{macro}" for macro in macros]
        source = HERE / ("fake_hccl.c" if "hccl" in soname else "fake.c")
        # Lazy: what a function of it lacks is missed by whoever opens it so that all of it is looked for.
        compile_c(*defined, "-shared", "-fPIC", f"-Wl,-z,lazy,-soname,{soname}", source, "-o", path, "-ldl")
        return path

    return build


@pytest.fixture
def refusing(tmp_path: Path) -> Callable[[Rank], None]:
    """For a rank: its process has refuse.c."""
    library = tmp_path / "librefuse.so"
    compile_c("-shared", "-fPIC", HERE / "refuse.c", "-o", library, "-ldl", "-pthread")

    def begin(rank: Rank) -> None:
        rank.environment["LD_PRELOAD"] = f"{DOORS[rank.vendor].path}:{library}"

    return begin
