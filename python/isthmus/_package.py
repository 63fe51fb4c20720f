"""Where the installed package is."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder that holds isthmus/isthmus.h, for a compiler's -I. `isthmus-config --cflags --libs` prints all flags."""
    return str(FOLDER / "include")
