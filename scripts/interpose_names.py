#!/usr/bin/env python3
"""Renews tests/interpose/names: which functions every vendor library and client on PyPI has or asks for.

    interpose_names.py               fetches the wheels that the lists lack, and says what the tables of csrc/interpose lack
    interpose_names.py nccl torch    those lists alone
    interpose_names.py --again       fetches all wheels anew; nothing is to change

Each list is a file of names/, one line a wheel: package, version, SHA-256, and how many names it has. Below that stand the
names in which it differs from the wheel above: + came, - went. Wheels are fetched one after another, by pip from the index
that it is set to, and deleted; a name is all that is kept. All of them are about 25 GB. Where pip is set to keep newer
versions back (a constraint), PIP_CONSTRAINT=/dev/null lets them come. The exit status is 1 where a table lacks a name.
`tests/interpose/test_interpose_names.py` reads the lists, and asks the index whether they are complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elftools.elf.elffile import ELFFile

from interpose_entries import read_table

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "csrc" / "interpose"
NAMES = ROOT / "tests" / "interpose" / "names"
# Whatever machine this runs on, the same wheels are looked at. pip takes the names of older systems one by one.
MANYLINUX = [f"_2_{minor}" for minor in range(39, 4, -1)] + ["2014", "2010", "1"]
PLATFORMS = [f"manylinux{tag}_x86_64" for tag in MANYLINUX] + ["linux_x86_64"]
# Of a wheel for one Python each the first of these that there is. pip is asked for one at a time.
PYTHONS = ("3.11", "3.10", "3.12", "3.13", "3.14")

NCCL, HCCL = re.compile(r"p?nccl[A-Z]\w*"), re.compile(r"H(ccl|com)[A-Z]\w*")

# NCCL 2.30.3 and 2.30.4 alone export these, which no header for programs declares: four are variables, and the functions are
# called by NCCL's own constructors, which must not come to a door that may have another library behind it.
LEFT_OUT = frozenset(
    {
        "ncclParamDumpAllFlag",
        "ncclParamDumpAllFlagKey",
        "ncclParamEnvPluginGet",
        "ncclParamIsCacheDisabled",
        "ncclParamNoCacheStr",
        "ncclParamNoCacheStrKey",
        "ncclParamRegistryInstance",
    }
)


class NoAnswer(Exception):
    """No index can be reached, or pip is to ask none."""


class NoPackage(Exception):
    """The index says that it has none of that name."""


class OtherAnswer(Exception):
    """The index says something else, or has nothing that is asked for: somebody should look at it."""


# What pip's log says of an index that does not answer, of one that has no such package, and of one that answers otherwise.
UNREACHED = re.compile(r"(?:connection error|Max retries exceeded|\b5\d\d Server Error|Ignoring indexes:).*")
NO_PACKAGE = re.compile(r"Could not fetch URL .*\b404 Client Error")
NO_LIST = re.compile(r"(?:Could not fetch URL (?!.*\b404 Client Error)|Skipping page ).*")


@dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: str
    names: frozenset[str]

    @property
    def key(self) -> tuple[str, str]:
        return self.package, self.version


@dataclass(frozen=True)
class Source:
    """What one list is made of."""

    packages: tuple[str, ...]
    oldest: tuple[int, ...]  # version that is looked at
    door: str  # whose table has the names
    names: Callable[[zipfile.ZipFile], set[str]]
    about: str
    pythons: tuple[str, ...] = PYTHONS[:1]  # one, where a wheel is for all of them


def numbers(version: str) -> tuple[int, ...]:
    """2.26.2.post1 comes behind 2.26.2."""
    return tuple(map(int, re.findall(r"\d+", version)))


def symbols(library: BinaryIO) -> Iterator[tuple[str, bool]]:
    """(name, whether the library has it for others) of all that it has or asks for."""
    elf = ELFFile(library)
    table = elf.get_section_by_name(".dynsym")
    if table is None:
        return
    texts = elf.get_section(table["sh_link"]).data()
    for at, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", table.data()):
        yield texts[at : texts.index(b"\0", at)].decode(), section != 0


def in_libraries(wheel: zipfile.ZipFile, end: str, kind: re.Pattern[str], defined: bool) -> set[str]:
    """Of all shared libraries whose path ends so. They may be larger than is good to hold in memory."""
    found: set[str] = set()
    for name in wheel.namelist():
        if re.search(rf"{end}$", name):
            with tempfile.TemporaryDirectory() as folder, open(wheel.extract(name, folder), "rb") as library:
                found |= {symbol for symbol, has in symbols(library) if has == defined and kind.fullmatch(symbol)}
    return found


def of_nccl(wheel: zipfile.ZipFile) -> set[str]:
    return in_libraries(wheel, r"/libnccl\.so\.2", NCCL, defined=True)


def of_torch(wheel: zipfile.ZipFile) -> set[str]:
    return in_libraries(wheel, r"\.so[.\d]*", NCCL, defined=False)


def of_rccl(wheel: zipfile.ZipFile) -> set[str]:
    """What AMD's bindings declare: no package has the library."""
    (text,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/cyrccl.pxd"))
    return set(re.findall(r"\b((?:p?nccl[A-Z]|mscclp?[A-Z])\w*)\(", text))


def of_torch_npu(wheel: zipfile.ZipFile) -> set[str]:
    """Of what is linked, and of the header by which the rest is looked up."""
    found = in_libraries(wheel, r"\.so", HCCL, defined=False)
    for name in wheel.namelist():
        if name.endswith("/hccl/inc/hccl/hccl.h"):
            text = re.sub(r"/\*.*?\*/|//[^\n]*", "", wheel.read(name).decode(errors="replace"), flags=re.DOTALL)
            found |= set(re.findall(r"^extern\b[^;{}()]*?\b(Hccl[A-Z]\w*)\s*\(", text, re.MULTILINE))
    return found


SOURCES = {
    "nccl": Source(
        ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
        (2, 19),
        "nccl",
        of_nccl,
        "What libnccl.so.2 exports, in NVIDIA's wheels.",
    ),
    "torch": Source(
        ("torch",), (2, 2), "nccl", of_torch, "What the libraries of PyTorch for CUDA ask for of NCCL's.", PYTHONS
    ),
    "rccl": Source(("rocm-bindings-systems",), (0,), "rccl", of_rccl, "What AMD's bindings declare of RCCL's functions."),
    "torch-npu": Source(
        ("torch-npu",),
        (2, 1),
        "hccl",
        of_torch_npu,
        "What PyTorch for Ascend is linked against or declares of HCCL's functions. HCCL itself is in no package.",
        PYTHONS,
    ),
}


def list_of(source: str) -> Path:
    return NAMES / f"{source}-wheels.txt"


def read_list(path: Path) -> list[Wheel]:
    wheels: list[Wheel] = []
    names: set[str] = set()
    heads: list[tuple[str, str, str, int]] = []

    def end() -> None:
        if heads:
            package, version, sha256, count = heads.pop()
            if len(names) != count:
                raise ValueError(f"{path}: {package} {version} has {len(names)} names, and says {count}")
            wheels.append(Wheel(package, version, sha256, frozenset(names)))

    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "+" and words[1] not in names:
            names.add(words[1])
        elif words[0] == "-" and words[1] in names:
            names.remove(words[1])
        elif len(words) == 4 and re.fullmatch(r"[0-9a-f]{64}", words[2]):
            end()
            heads.append((words[0], words[1], words[2], int(words[3])))
        else:
            raise ValueError(f"{path}: {line}")
    end()
    return wheels


def write_list(path: Path, about: str, wheels: list[Wheel]) -> None:
    lines = [f"# {about} Made by scripts/interpose_names.py, which says how it is to be read."]
    before: frozenset[str] = frozenset()
    for wheel in sorted(wheels, key=lambda w: (numbers(w.version), w.package)):
        lines.append(f"{wheel.package} {wheel.version} {wheel.sha256} {len(wheel.names)}")
        lines += [f"- {name}" for name in sorted(before - wheel.names)]
        lines += [f"+ {name}" for name in sorted(wheel.names - before)]
        before = wheel.names
    path.write_text("".join(f"{line}\n" for line in lines))


def wheels_for(python: str) -> list[str]:
    """The words by which pip looks at the wheels for that Python, and for any."""
    words = [word for platform in PLATFORMS for word in ("--platform", platform)]
    words += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    return words + [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]


def asked(package: str, python: str, timeout: float) -> list[str]:
    """What the index has of it for that Python; empty if there is none, but others."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--json", "--timeout", "15", "--retries", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"  # says why there is none: what pip prints is the same whether an index answers or not
        try:
            ended = subprocess.run(
                [*command, "--log", str(log), *wheels_for(python), package],
                text=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"no word of {package} within {timeout} s") from None
        said = log.read_text(errors="replace") if log.is_file() else ""
    if ended.returncode == 0:
        return list(json.loads(ended.stdout)["versions"])
    if ended.returncode == 2:  # a pip that does not know these words
        raise SystemExit(ended.stderr)
    if unreached := UNREACHED.search(said):
        raise NoAnswer(f"{package}: {unreached[0]}")
    if wrong := NO_LIST.search(said):
        raise OtherAnswer(f"{package}: {wrong[0]}")
    if NO_PACKAGE.search(said):
        raise NoPackage(f"the index has no {package}")
    if "No matching distribution found" in ended.stderr:
        return []
    raise OtherAnswer(f"pip says of {package}: {ended.stderr.strip() or 'nothing'}")


def versions(
    package: str, oldest: tuple[int, ...], pythons: tuple[str, ...] = PYTHONS[:1], timeout: float = 120
) -> dict[str, str]:
    """What the index has of it, the oldest first, each with the first Python that it is for; without builds for one machine
    (2.13.0+cpu)."""
    found: dict[str, str] = {}
    with ThreadPoolExecutor() as several:
        for python, there in zip(pythons, several.map(lambda one: asked(package, one, timeout), pythons), strict=True):
            for version in there:
                found.setdefault(version, python)
    if not found:
        raise OtherAnswer(f"the index has {package}, and no wheel of it for Python {', '.join(pythons)} on {PLATFORMS[0]}")
    known = sorted((version for version in found if "+" not in version and numbers(version) >= oldest), key=numbers)
    return {version: found[version] for version in known}


def fetch(package: str, version: str, python: str, names: Callable[[zipfile.ZipFile], set[str]]) -> Wheel:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", folder]
        # ===: not a build for one machine of the same version.
        words = [*command, *wheels_for(python), f"{package}==={version}"]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*.whl")
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        with zipfile.ZipFile(path) as wheel:
            return Wheel(package, version, digest.hexdigest(), frozenset(names(wheel)))


def renew(name: str, again: bool) -> list[str]:
    """What the table lacks of this list."""
    source = SOURCES[name]
    path = list_of(name)
    known = {wheel.key: wheel for wheel in read_list(path)} if path.is_file() else {}
    for package in source.packages:
        for version, python in versions(package, source.oldest, source.pythons).items():
            if again or (package, version) not in known:
                wheel = fetch(package, version, python, source.names)
                if not wheel.names:
                    raise SystemExit(
                        f"interpose_names: {package} {version} has none of the names; is it made otherwise now?"
                    )
                known[wheel.key] = wheel
                print(f"{package} {version}: {len(wheel.names)} names", flush=True)
                write_list(path, source.about, list(known.values()))
    table = TABLES / f"{'hccl' if source.door == 'hccl' else 'nccl'}.symbols"
    has = {one for row in read_table(table) if row.is_in(source.door) for one in row.names}
    lacks: dict[str, Wheel] = {}
    for wheel in sorted(known.values(), key=lambda w: numbers(w.version)):
        for one in sorted(wheel.names - has - LEFT_OUT):
            lacks.setdefault(one, wheel)
    return [f"{table.relative_to(ROOT)} lacks {one} of {w.package} {w.version}" for one, w in lacks.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(SOURCES)}; else all of them")
    parser.add_argument("--again", action="store_true", help="fetch also the wheels that are listed")
    given = parser.parse_args()
    if unknown := [name for name in given.lists if name not in SOURCES]:
        parser.error(f"there is no list {unknown[0]}: {', '.join(SOURCES)}")
    lacking = [line for name in given.lists or SOURCES for line in renew(name, given.again)]
    print(*lacking, sep="\n")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
