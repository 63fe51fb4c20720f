"""scripts/setup.py: which Python it builds for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import setup

ROOT = Path(__file__).resolve().parents[2]
MINE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(("chosen", "there"), [("python3", MINE + "\n"), ("python3", ""), (None, "3.1\n")])
def test_an_environment_of_the_same_python_is_kept(monkeypatch: pytest.MonkeyPatch, chosen: str | None, there: str) -> None:
    """Also where there is none, and where nobody has chosen."""
    monkeypatch.setattr(setup, "answer", lambda *_: there)
    monkeypatch.delenv("CHOSEN_PYTHON", raising=False)
    if chosen:
        monkeypatch.setenv("CHOSEN_PYTHON", chosen)
    setup.refuse_another_python()


def test_an_environment_of_another_python_than_was_chosen_is_refused_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "answer", lambda *_: "3.1\n")
    monkeypatch.setenv("CHOSEN_PYTHON", "python3")
    with pytest.raises(
        SystemExit, match=rf"PYTHON=python3 is Python {MINE}, and .venv is there and of Python 3.1: `make distclean`"
    ):
        setup.refuse_another_python()


@pytest.mark.parametrize(("words", "said"), [(["PYTHON=python3.99"], "python3.99"), ([], "")])
def test_make_tells_the_scripts_which_python_was_chosen(words: list[str], said: str) -> None:
    command = ["make", "--no-print-directory", "--eval", "show: ; @echo chosen $$CHOSEN_PYTHON", "show", *words]
    told = subprocess.run(
        command, cwd=ROOT, check=True, text=True, capture_output=True, env={"PATH": "/usr/bin:/bin"}
    ).stdout
    assert told.split() == ["chosen", *said.split()]
