"""What is compiled in of other people's has its licence in LICENSES/, and the wheel carries all of these."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build" / "release"
NOTICES = {path.name for path in (ROOT / "LICENSES").iterdir()}
# Where headers lie, and whose they are.
OTHERS = {
    "fmt/": "fmt.txt",
    "spdlog/": "spdlog.txt",
    "nlohmann/": "nlohmann-json.txt",
    "hwy/": "highway.txt",
    "CLI/": "CLI11.txt",
    "pybind11/": "pybind11.txt",
    "torch/": "pytorch.txt",
}
# Interfaces of the system and the compiler's run time, both of which are linked dynamically and have no notice to give.
LIBC = "arpa|asm|asm-generic|bits|gnu|linux|net|netinet|netpacket|rpc|scsi|sys"
SYSTEM = re.compile(rf"(c\+\+|\w+-linux-gnu\w*|python3\.\d+|{LIBC})/|[\w-]+\.h$")


def compiled_headers() -> set[str]:
    """Every header that the files of the package were compiled with, by the build's own record."""
    ended = subprocess.run(["ninja", "-C", RELEASE, "-t", "deps"], text=True, capture_output=True, check=True)
    found: set[str] = set()
    counts = False
    for line in ended.stdout.splitlines():
        if not line.startswith(" "):
            counts = "#deps" in line and not line.startswith(("tests/", "bench/kernels/", "bench/interpose/"))
        elif counts:
            found.add(str((RELEASE / line.strip()).resolve()))
    return found


def owner(header: str) -> str | None:
    """The notice that a header calls for; empty for the system's and our own; None where nobody knows."""
    if header.startswith((str(ROOT / "csrc"), str(ROOT / "bench"), str(RELEASE), "/usr/lib/gcc", "/usr/local/lib/gcc")):
        return ""
    for folder, notice in OTHERS.items():
        if f"/include/{folder}" in header or f"/{folder}include/" in header:
            return notice
    path = re.sub(r"^.*?/include/", "", header)
    return "" if SYSTEM.match(path) else None


def test_every_library_that_is_compiled_in_has_its_notice() -> None:
    headers = compiled_headers()
    assert len(headers) > 500
    owners = {header: owner(header) for header in headers}
    assert sorted(header for header, notice in owners.items() if notice is None) == [], "whose are they? see OTHERS"
    asked = {notice for notice in owners.values() if notice}
    assert asked <= NOTICES, "LICENSES/ lacks what the build includes"
    assert {"fmt.txt", "highway.txt", "CLI11.txt", "pybind11.txt"} <= asked, "the test of the test"


@pytest.mark.parametrize("name", sorted(NOTICES))
def test_a_notice_says_whose_it_is_and_the_package_carries_it(name: str) -> None:
    text = (ROOT / "LICENSES" / name).read_text()
    assert "Copyright" in text and "https://" in text.splitlines()[0]
    assert "AS IS" in text
    installed = [file for file in metadata.files("isthmus") or [] if file.name == name and "licenses" in file.parts]
    assert [file.read_text() for file in installed] == [text]


def test_a_licence_that_is_referred_to_is_there() -> None:
    """Highway is under the licence of Isthmus, whose text is there once."""
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    (own,) = [file for file in metadata.files("isthmus") or [] if file.name == "LICENSE" and "licenses" in file.parts]
    assert own.read_text() == (ROOT / "LICENSE").read_text()


def test_the_source_distribution_has_the_notices_and_the_description(tmp_path: Path) -> None:
    program = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    words = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=patient(120))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"LICENSE", "python/README.md", "docs/howto/python.md", *(f"LICENSES/{name}" for name in NOTICES)} <= names
    assert not [name for name in names if name.startswith(("build/", ".venv/", "dist/"))]
