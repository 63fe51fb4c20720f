"""README.md and docs/: what they refer to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TRACKED = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True)
PAGES = sorted(ROOT / name for name in TRACKED.stdout.split()) or [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """To other pages, pictures and headings of the tree."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading_that_is_there(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_reached_from_the_index() -> None:
    reached, next_ones = set(), [DOCS / "index.md"]
    while next_ones:
        page = next_ones.pop()
        if page not in reached:
            reached.add(page)
            targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if not link.startswith("#")]
            next_ones += [target for target in targets if target.suffix == ".md" and target.is_relative_to(DOCS)]
    assert sorted(set(DOCS.rglob("*.md")) - reached) == []


def test_a_page_of_the_documentation_links_to_nothing_outside() -> None:
    """The package and the site have docs/ alone."""
    outside = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in DOCS.rglob("*.md")
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_every_function_of_the_way_down_stands_in_its_file() -> None:
    places = re.findall(r"`((?:csrc|python)/[^`: ]+): ([^`]+)`", (DOCS / "explain" / "way-down.md").read_text())
    assert len(places) > 40
    missing = [
        f"{file}: {function}"
        for file, function in places
        if not re.search(rf"(?<![\w:]){re.escape(function)}\(", (ROOT / file).read_text())
    ]
    assert missing == []


def test_the_page_of_versions_has_the_numbers_of_the_code() -> None:
    page = (DOCS / "reference" / "versions.md").read_text()
    for name, words in (("kProtocolVersion", "wire protocol"), ("kPlanVersion", "plan version")):
        (file,) = set(re.findall(rf"`(csrc/[^`:]+): {name}`", page))
        number = re.search(rf"\b{name} = (\d+);", (ROOT / file).read_text())
        assert number and f"{words}, {number[1]} today" in page
    header = (ROOT / "csrc" / "include" / "isthmus" / "isthmus.h").read_text()
    parts = dict(re.findall(r"#define ISTHMUS_VERSION_(\w+) (\d+)", header))
    version = f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}"
    assert f"The number is {version}." in page
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"This will be {version}." in changes or f"## [{version}]" in changes


def test_the_site_has_the_pages_in_the_order_of_the_index() -> None:
    """(mkdocs.yml is read as text: YAML is not Python's own.)"""
    of_site = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    of_index = re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", (DOCS / "index.md").read_text(), re.M)
    assert of_site == ["index.md", *of_index]


def test_the_pictures_are_what_their_script_draws() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    import picture

    assert picture.PICTURE.read_text() == picture.picture(), "python3 scripts/picture.py"


def test_the_container_for_developers_has_the_packages_that_set_up_looks_for() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    import system_packages

    container = set(re.findall(r"^ {6}(\S+) \\$", (ROOT / ".devcontainer" / "Dockerfile").read_text(), re.M))
    wanted = {re.sub(r"^python3\.\d+", "python3", p.name) for p in (*system_packages.BUILD, *system_packages.TEST)}
    assert sorted(wanted - container) == []
    page = (DOCS / "reference" / "dependencies.md").read_text()
    assert sorted(name for name in container - {"clangd", "git", "make"} if f"`{name}`" not in page) == []


def test_the_readme_shows_the_two_commands_first_then_use_install_demo_and_test() -> None:
    text = (ROOT / "README.md").read_text()
    order = ("\nmake demo ", "\n## Use", "\n## Install", "\n## Demo", "\n## Test", "\n## Where")
    places = [text.index(word) for word in order]
    assert places == sorted(places) and text.index("\nmake test ") < places[1]
    assert text[: places[1]].count("\n") < 40, "all of it on one screen"


def test_the_commands_of_the_readme_are_commands() -> None:
    text = (ROOT / "README.md").read_text()
    commands = set(re.findall(r"^isthmus (\w+)", text, re.M))
    assert {"doctor", "topo", "run", "bench"} <= commands
    said = subprocess.run(
        [sys.executable, "-m", "isthmus", "--help"], capture_output=True, text=True, check=True, timeout=patient(60)
    ).stdout
    assert [name for name in sorted(commands) if not re.search(rf"\b{name}\b", said)] == []
    targets = set(re.findall(r"^(?:`)?make (\w[\w-]*)", text, re.M)) | set(re.findall(r"`make ([\w-]+)`", text))
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in sorted(targets) if not re.search(rf"^{name}:", makefile, re.M)] == []
