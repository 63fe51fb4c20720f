"""What the front doors export against what every vendor library and client on PyPI has or asks for.

The lists of names/ are made by scripts/interpose_names.py. That they hold every version is asked of the index by
`make test-all`: a new NCCL, PyTorch, RCCL or PyTorch for Ascend fails there until somebody has looked at its names. That is
skipped where no index can be reached.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import interpose_names
from doors import DOORS, HERE
from interpose_entries import read_table
from interpose_names import LEFT_OUT, SOURCES, Wheel, list_of, numbers, read_list, write_list

pytestmark = pytest.mark.computes

LISTS = {name: read_list(list_of(name)) for name in SOURCES}
WHEELS = [(name, wheel) for name, wheels in LISTS.items() for wheel in wheels]
ROWS = read_table(DOORS["nccl"].rows)


def exported(library: str) -> set[str]:
    with open(DOORS[library].path, "rb") as file:
        return {name for name, has in interpose_names.symbols(file) if has}


@pytest.mark.parametrize(("name", "wheel"), WHEELS, ids=[f"{wheel.package}-{wheel.version}" for _, wheel in WHEELS])
def test_nothing_of_a_wheel_is_missing(name: str, wheel: Wheel) -> None:
    assert len(wheel.names) > 8
    assert wheel.names - exported(SOURCES[name].door) - LEFT_OUT == set()


def test_nothing_that_clients_look_up_is_missing() -> None:
    """What PyTorch, CuPy, JAX and vLLM ask for by name, of NCCL or of RCCL."""
    names = set((HERE / "names" / "clients.txt").read_text().split())
    assert len(names) > 50
    assert names <= exported("nccl") and names <= exported("rccl")


def test_nothing_that_rccl_alone_has_is_missing() -> None:
    """And nothing is there that neither it nor NCCL has."""
    lines = (HERE / "names" / "rccl-extras.txt").read_text().splitlines()
    extras = {line for line in lines if not line.startswith("#")}
    known = extras.union(*(wheel.names for name in ("nccl", "rccl") for wheel in LISTS[name]))
    assert len(extras) == 10 and extras <= exported("rccl")
    assert exported("rccl") <= known | {f"p{name}" for name in known}


def test_nothing_that_hccls_headers_declare_is_missing() -> None:
    lines = (HERE / "names" / "hccl-headers.txt").read_text().splitlines()
    declared = {line for line in lines if not line.startswith("#")}
    assert len(declared) > 100 and declared <= exported("hccl")


def test_what_is_left_out_was_in_two_versions_alone_and_nobody_asks_for_it() -> None:
    having = {wheel.version for wheel in LISTS["nccl"] if wheel.names & LEFT_OUT}
    assert having == {"2.30.3", "2.30.4"}
    assert [wheel.version for wheel in LISTS["torch"] if wheel.names & LEFT_OUT] == []
    for library in ("nccl", "rccl"):
        assert exported(library) & LEFT_OUT == set()


def test_the_exports_of_nccl_are_those_of_the_newest() -> None:
    newest = max((wheel.version for wheel in LISTS["nccl"]), key=numbers)
    for wheel in LISTS["nccl"]:
        if wheel.version == newest:
            assert exported("nccl") == wheel.names, wheel.package


def test_a_function_is_since_the_first_version_that_has_it() -> None:
    """Of what was there before the oldest wheel, that is all that can be said."""
    wheels = sorted(LISTS["nccl"], key=lambda wheel: numbers(wheel.version))
    first: dict[str, str] = {}
    for wheel in wheels:
        for name in wheel.names:
            first.setdefault(name, wheel.version)
    oldest = wheels[0].version
    wrong = []
    for row in ROWS:
        for name in row.names if row.is_in("nccl") else ():
            since = oldest if numbers(row.since) <= numbers(oldest) else row.since
            if first[name] != since:
                wrong.append(f"{name} is since {row.since}, and the first wheel that has it {first[name]}")
    assert wrong == []


def test_a_list_says_what_it_was_made_of(tmp_path: Path) -> None:
    wheels = [
        Wheel("some", "2.9.0", "a" * 64, frozenset({"ncclB", "ncclA"})),
        Wheel("other", "2.10.0", "b" * 64, frozenset({"ncclB", "ncclC"})),
        Wheel("other", "2.10.0.post1", "c" * 64, frozenset({"ncclB", "ncclC"})),
    ]
    path = tmp_path / "list"
    write_list(path, "Some.", wheels[::-1])
    assert read_list(path) == wheels
    text = path.read_text()
    assert text.endswith(f"- ncclA\n+ ncclC\nother 2.10.0.post1 {'c' * 64} 2\n")
    for wrong in (text.replace("+ ncclC\n", ""), text.replace("- ncclA", "- ncclD"), text + "+ ncclC\n", text + "ncclE\n"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="list: "):
            read_list(path)


def test_every_wheel_is_listed_once_with_what_it_is() -> None:
    for name, wheels in LISTS.items():
        assert len({wheel.key for wheel in wheels}) == len({wheel.sha256 for wheel in wheels}) == len(wheels)
        assert {wheel.package for wheel in wheels} == set(SOURCES[name].packages)
        assert all(numbers(wheel.version) >= SOURCES[name].oldest for wheel in wheels)


@pytest.mark.everything
@pytest.mark.parametrize(
    ("name", "package"), [(name, package) for name, source in SOURCES.items() for package in source.packages]
)
def test_the_index_has_no_version_that_is_not_listed(name: str, package: str) -> None:
    try:
        there = interpose_names.versions(package, SOURCES[name].oldest, SOURCES[name].pythons)
    except interpose_names.NoAnswer as no:
        pytest.skip(f"no index of packages can be reached: {no}")
    listed = {wheel.version for wheel in LISTS[name] if wheel.package == package}
    unlisted = [version for version in there if version not in listed]
    assert unlisted == [], (
        f"nobody looked at the names of {package} {', '.join(unlisted)}: run `python scripts/interpose_names.py {name}`, "
        f"which adds them to {list_of(name).name}, and give the table of csrc/interpose what it says is missing there"
    )


@pytest.mark.everything
def test_the_index_has_no_nccl_for_a_newer_cuda_than_those_that_are_listed() -> None:
    """NVIDIA gives each its own package, so none would be seen as a version of the last."""
    newest = max(int(package.rpartition("-cu")[2]) for package in SOURCES["nccl"].packages)
    package = f"nvidia-nccl-cu{newest + 1}"
    with contextlib.suppress(interpose_names.NoPackage):
        try:
            there = list(interpose_names.versions(package, (0,)))
        except interpose_names.NoAnswer as no:
            pytest.skip(f"no index of packages can be reached: {no}")
        pytest.fail(
            f"there is {package} {', '.join(there)}: add it to the packages of NCCL in scripts/interpose_names.py, and run "
            "`python scripts/interpose_names.py nccl`"
        )


# ---- what an index may say -----------------------------------------------------------------------------------------------


@pytest.fixture
def only_index(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets pip ask that one and no other, whatever it is set to."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "CONSTRAINT", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    return lambda url: monkeypatch.setenv("PIP_INDEX_URL", url)


@contextlib.contextmanager
def an_index(status: int, *wheels: str) -> Iterator[str]:
    """One that answers so, whatever it is asked for: its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write("".join(f'<a href="/{wheel}">{wheel}</a>\n' for wheel in wheels).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_index_that_cannot_be_reached_is_no_answer(
    only_index: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        only_index(f"http://127.0.0.1:{nobody.getsockname()[1]}/simple")
        with pytest.raises(interpose_names.NoAnswer, match="some"):
            interpose_names.versions("some", (2, 19))
    with an_index(503) as url:
        only_index(url)
        with pytest.raises(interpose_names.NoAnswer, match="some"):
            interpose_names.versions("some", (2, 19))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(interpose_names.NoAnswer, match="some"):
        interpose_names.versions("some", (2, 19))


def test_an_index_that_has_no_such_package_says_so(only_index: Callable[[str], None]) -> None:
    with an_index(404) as url:
        only_index(url)
        with pytest.raises(interpose_names.NoPackage, match="some"):
            interpose_names.versions("some", (2, 19))


@pytest.mark.parametrize(
    ("status", "wheels", "why"),
    [
        (403, (), "403 Client Error"),
        (200, (), "no wheel of it"),
        (200, ("some-2.20.0-cp311-cp311-win_amd64.whl",), "no wheel of it"),
    ],
)
def test_any_other_answer_is_told_and_not_taken_for_none(
    status: int, wheels: tuple[str, ...], why: str, only_index: Callable[[str], None]
) -> None:
    with an_index(status, *wheels) as url:
        only_index(url)
        with pytest.raises(interpose_names.OtherAnswer, match=f"some.*{why}|{why}.*some"):
            interpose_names.versions("some", (2, 19))


def test_a_version_is_found_whatever_python_and_system_its_wheel_is_for(only_index: Callable[[str], None]) -> None:
    wheels = (
        "some-2.9.1-py3-none-manylinux2014_x86_64.whl",  # too old to be looked at
        "some-2.20.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "some-2.21.0-cp314-cp314-manylinux_2_39_x86_64.whl",
        "some-2.21.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "some-2.22.0-cp314-cp314-manylinux_2_39_x86_64.whl",
        "some-2.23.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "some-2.24.0-cp312-abi3-linux_x86_64.whl",
        "some-2.25.0-py3-none-manylinux_2_33_x86_64.whl",
    )
    with an_index(200, *wheels) as url:
        only_index(url)
        found = interpose_names.versions("some", (2, 19), interpose_names.PYTHONS)
    assert found == {"2.20.0": "3.10", "2.21.0": "3.11", "2.22.0": "3.14", "2.24.0": "3.12", "2.25.0": "3.11"}
