"""scripts/setup.py: which Python it builds for, and which PyTorch it installs."""

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


@pytest.mark.parametrize(
    ("there", "installed_here", "installs"),
    [
        pytest.param("", None, True, id="none is there"),
        pytest.param("2.9.1", None, False, id="somebody else's"),
        pytest.param("2.9.1", "2.13.0+cpu", False, id="somebody else's in place of what set-up had installed"),
        pytest.param("2.9.1", "2.9.1", True, id="what set-up had installed for an older pin"),
    ],
)
def test_set_up_replaces_only_the_pytorch_that_it_has_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: str, installed_here: str | None, installs: bool
) -> None:
    ran: list[tuple[object, ...]] = []
    version = tmp_path / "torch.version"
    if installed_here:
        version.write_text(installed_here)
    monkeypatch.setattr(setup, "STAMPS", tmp_path)
    monkeypatch.setattr(setup, "run", lambda *command: ran.append(command))
    monkeypatch.setattr(setup, "answer", lambda *_: "2.13.0+cpu" if ran else there)
    setup.install_torch()
    assert [command[-1] for command in ran] == ([setup.TORCH] if installs else [])
    if installs:
        assert version.read_text() == "2.13.0+cpu"
