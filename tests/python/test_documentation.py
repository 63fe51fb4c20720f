"""README.md and docs/: what they refer to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_to_a_file_and_a_heading_that_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


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
