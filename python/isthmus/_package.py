"""Where the installed package is."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder for a compiler's -I: it holds isthmus/isthmus.h. `isthmus-config --cflags --libs` has all the words."""
    return str(FOLDER / "include")
