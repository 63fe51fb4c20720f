"""What the front doors export against what every vendor library and client on PyPI has or asks for.

The lists of names/ are made by scripts/interpose_names.py. That they hold every version is asked of the index: a new NCCL,
PyTorch, RCCL or PyTorch for Ascend fails here until somebody has looked at its names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import interpose_names
from doors import DOORS, HERE
from interpose_entries import read_table
from interpose_names import LEFT_OUT, SOURCES, Wheel, list_of, numbers, read_list, write_list

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


@pytest.mark.parametrize(
    ("name", "package"), [(name, package) for name, source in SOURCES.items() for package in source.packages]
)
def test_the_index_has_no_version_that_is_not_listed(name: str, package: str) -> None:
    try:
        there = interpose_names.versions(package, SOURCES[name].oldest)
    except interpose_names.NoAnswer as no:
        pytest.skip(f"the index of packages does not answer: {no}")
    listed = {wheel.version for wheel in LISTS[name] if wheel.package == package}
    unlisted = [version for version in there if version not in listed]
    assert unlisted == [], (
        f"nobody looked at the names of {package} {', '.join(unlisted)}: run `python scripts/interpose_names.py {name}`, "
        f"which adds them to {list_of(name).name}, and give the table of csrc/interpose what it says is missing there"
    )


def test_an_index_that_does_not_answer_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is one that has never heard of the package."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(interpose_names.NoAnswer, match="nvidia-nccl-cu12"):
        interpose_names.versions("nvidia-nccl-cu12", (2, 19))
