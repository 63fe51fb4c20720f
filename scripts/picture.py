#!/usr/bin/env python3
"""Draws docs/islands.svg: the faces that programs call, the islands, and the bridge between them.

python3 scripts/picture.py            # writes it
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "islands.svg"
WIDTH, HEIGHT = 880, 470
INK, LIGHT, PAPER = "#1f2933", "#52606d", "#ffffff"
FACES = ("PyTorch", "Python", "C", "NCCL, RCCL, HCCL")
# Of each island: title, what is inside, the ranks, colour.
ISLANDS = (
    ("island of NVIDIA GPUs", "NCCL inside", ("rank 0", "rank 1"), "#d8f0d2", "#3c7d2c"),
    ("island of AMD GPUs", "RCCL inside", ("rank 2", "rank 3"), "#fbe0d6", "#b4421a"),
    ("island of CPUs", "shared memory inside", ("rank 4", "rank 5"), "#d9e8fb", "#24569c"),
)


def text(x: float, y: float, words: str, size: int = 14, colour: str = INK, weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" font-weight="{weight}" text-anchor="middle">'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str, line: str, radius: int = 10) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}" stroke="{line}" '
        'stroke-width="1.5"/>'
    )


def faces() -> list[str]:
    drawn = [text(WIDTH / 2, 28, "faces: what a program calls", 13, LIGHT)]
    width = (WIDTH - 40 - 3 * 16) / 4
    for number, name in enumerate(FACES):
        x = 20 + number * (width + 16)
        drawn += [box(x, 40, width, 42, "#f0f4f8", LIGHT), text(x + width / 2, 66, name)]
        drawn.append(f'<path d="M{x + width / 2:g} 82 V104" stroke="{LIGHT}" stroke-width="1.5" marker-end="url(#tip)"/>')
    return drawn


def library() -> list[str]:
    return [
        box(20, 108, WIDTH - 40, 46, "#fff7e0", "#9a7400"),
        text(WIDTH / 2, 136, "libisthmus: one communicator over all ranks; a plan for each operation", 15, INK, "bold"),
    ]


def islands() -> list[str]:
    drawn = []
    width = (WIDTH - 40 - 2 * 30) / 3
    for number, (title, inside, ranks, fill, line) in enumerate(ISLANDS):
        x = 20 + number * (width + 30)
        middle = x + width / 2
        drawn += [box(x, 190, width, 150, fill, line, 24), text(middle, 216, title, 15, line, "bold")]
        for place, rank in enumerate(ranks):
            at = middle + (place - 0.5) * 110
            drawn += [box(at - 44, 234, 88, 40, PAPER, line), text(at, 259, rank)]
        drawn += [
            f'<path d="M{middle - 11:g} 254 H{middle + 11:g}" stroke="{line}" stroke-width="4"/>',
            text(middle, 300, inside, 14, line),
            text(middle, 322, "fast", 12, LIGHT),
            f'<path d="M{middle:g} 340 V378" stroke="{LIGHT}" stroke-width="6"/>',
        ]
    return drawn


def bridge() -> list[str]:
    return [
        box(60, 378, WIDTH - 120, 44, "#e4e7eb", LIGHT),
        text(WIDTH / 2, 405, "bridge: shared memory on one host, TCP between hosts", 15, INK, "bold"),
        text(WIDTH / 2, 446, "slower; data of GPUs crosses through pinned memory of the host", 12, LIGHT),
    ]


def picture() -> str:
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{LIGHT}"/></marker></defs>'
    )
    title = "Faces on top, one library below them, three islands of ranks, and the bridge that joins the islands"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{title}" font-family="DejaVu Sans, Arial, sans-serif">'
    )
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
    return "\n".join([head, tip, ground, *faces(), *library(), *islands(), *bridge(), "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(PICTURE)
