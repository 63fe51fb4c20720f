"""A topology as a drawing: hosts are frames, islands are land, ranks are dots on it, bridges are roads."""

from __future__ import annotations

import re
from math import ceil
from xml.sax.saxutils import escape

from .layout import Host, Island, Layout, Rank

_FONT = "font-family='Inter, Segoe UI, Helvetica, Arial, sans-serif'"
_LAND = ["#dcefdc", "#fdebc8", "#dfe6fb", "#f6dce9", "#d9f0f2", "#ece3f7", "#f4e3d7", "#e6eccb"]
_SHORE = ["#4f9a55", "#d0902a", "#5b74d6", "#c2588f", "#2f97a3", "#8863c0", "#b8703f", "#869a2e"]
_ROAD = "#52606d"
_DOT, _GAP, _PAD = 46, 14, 18
_LINE = 13  # height of a line of a rank's label, which is below its dot
_COLUMNS = 4  # ranks in a row of an island
_HOST_WIDTH = 1100  # an island that would make its host wider starts a new row
_HEAD, _FOOT = 34, 58


def text_width(text: str, size: float) -> float:
    """No less than what the widest of the usual fonts needs (DejaVu Sans, bold), in units of the drawing."""
    narrow, wide = "iIjlf.,:;'|!()[] /\\-", "mMwWQOGD%@&"
    letters = [0.46 if c in narrow else 1.11 if c in wide else 0.72 if c.islower() or c.isdigit() else 0.84 for c in text]
    return size * sum(letters if text.isascii() else [max(letter, 1.1) for letter in letters])


# What the words before the names take.
_HOST_WORD = ceil(text_width("host ", 12))
_ISLAND_WORD = ceil(text_width("island ", 12))


def wrap(text: str, size: float, width: float) -> list[str]:
    """Lines that fit, broken behind blanks and commas; a piece that has neither and does not fit is a line of its own."""
    lines = [""]
    for piece in re.findall(r"[^ ,]*(?:[ ,]+|$)", text):
        if lines[-1] and text_width((lines[-1] + piece).rstrip(), size) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _labels(rank: Rank) -> list[str]:
    """What a rank works on: the maker tells devices of one number apart."""
    return [rank.device, rank.maker] if rank.maker else [rank.device]


class _Grid:
    """How the ranks of an island lie."""

    def __init__(self, island: Island) -> None:
        labels = [label for rank in island.ranks for label in _labels(rank)]
        self.columns = min(_COLUMNS, len(island.ranks))
        self.step = max(_DOT, *(ceil(text_width(label, 10)) for label in labels)) + _GAP
        self.row = _DOT + _LINE * max(len(_labels(rank)) for rank in island.ranks) + _GAP
        self.head = island.label if island.whole == len(island.ranks) else f"{island.label} ({island.size()})"
        rows = -(-len(island.ranks) // _COLUMNS)
        self.width = max(
            self.columns * self.step - _GAP + 2 * _PAD, ceil(text_width(self.head, 14)) + _ISLAND_WORD + 2 * _PAD, 150
        )
        self.height = _HEAD + rows * self.row - _GAP + _PAD


class _Host:
    """Where the islands of a host lie, relative to its corner."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.rows: list[list[tuple[Island, int, int, int]]] = [[]]  # island, x, width, height
        x = widest = _PAD
        for island in host.islands:
            grid = _Grid(island)
            width, height = grid.width, grid.height
            if self.rows[-1] and x + width + _PAD > _HOST_WIDTH:
                self.rows.append([])
                x = _PAD
            self.rows[-1].append((island, x, width, height))
            x += width + 2 * _PAD
            widest = max(widest, x - _PAD)
        foot = _FOOT if host.bridge else _PAD
        self.row_heights = [max(height for *_, height in row) + foot for row in self.rows]
        self.width = max(widest, ceil(text_width(host.title(), 13)) + _HOST_WORD + 2 * _PAD)
        self.height = _HEAD + sum(self.row_heights)


def draw(layout: Layout) -> str:
    """The drawing as an SVG document."""
    hosts = [_Host(host) for host in layout.hosts]
    margin = 28
    rows: list[list[_Host]] = [[]]
    for host in hosts:
        if rows[-1] and sum(h.width + margin for h in rows[-1]) + host.width > _HOST_WIDTH:
            rows.append([])
        rows[-1].append(host)
    width = max(sum(h.width + margin for h in row) for row in rows) + margin
    width = max(width, 480)
    title = wrap(layout.title, 20, width - 2 * margin)
    width = max(width, *(ceil(text_width(line, 20)) + 2 * margin for line in title))
    foot = _FOOT if layout.bridge else 0
    top = 38 + 26 * len(title)
    height = top + sum(max(h.height for h in row) + foot + margin for row in rows)
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {_FONT}>",
        f"<title>{escape(layout.title)}</title>",
        f"<rect width='{width}' height='{height}' fill='#eef5fa'/>",
        *(_text(margin, 42 + 26 * n, line, 20, weight=600) for n, line in enumerate(title)),
    ]
    y = top
    roads: list[int] = []  # heights of the roads between hosts, one a row
    for row in rows:
        x = margin
        row_height = max(h.height for h in row)
        if layout.bridge:
            centres = _centres(row, x, margin)
            roads.append(y + row_height + 30)
            ends = [(c, y + h.height) for c, h in zip(centres, row, strict=True)]
            if len(rows) > 1:  # every row's road ends at the trunk on the left
                ends.append((margin // 2, roads[-1]))
            out += _road(ends, roads[-1], layout.bridge)
        for host in row:
            out.append(_frame(x, y, host))
            _draw_islands(out, host, x, y)
            x += host.width + margin
        y += row_height + foot + margin
    if len(roads) > 1:
        trunk = f"M{margin // 2} {roads[0]}V{roads[-1]}"
        out.append(f"<path d='{trunk}' stroke='{_ROAD}' stroke-width='5' stroke-linecap='round'/>")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _centres(row: list[_Host], x: int, margin: int) -> list[int]:
    centres = []
    for host in row:
        centres.append(x + host.width // 2)
        x += host.width + margin
    return centres


def _frame(x: int, y: int, host: _Host) -> str:
    box = f"<rect x='{x}' y='{y}' width='{host.width}' height='{host.height}' rx='14' fill='#ffffff' stroke='#c3d0da'/>"
    return (
        box
        + _text(x + _PAD, y + 23, "host", 12, fill="#7b8794")
        + _text(x + _PAD + _HOST_WORD, y + 23, host.host.title(), 13, weight=600)
    )


def _draw_islands(out: list[str], host: _Host, left: int, top: int) -> None:
    y = top + _HEAD
    for row, row_height in zip(host.rows, host.row_heights, strict=True):
        if host.host.bridge:
            ends = [(left + x + width // 2, y + height) for _, x, width, height in row]
            out += _road(ends, y + row_height - 26, host.host.bridge)
        for island, x, width, height in row:
            out += _island(left + x, y, width, height, island)
        y += row_height


def _island(x: int, y: int, width: int, height: int, island: Island) -> list[str]:
    land, shore = _LAND[island.number % len(_LAND)], _SHORE[island.number % len(_SHORE)]
    grid = _Grid(island)
    out = [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='20' fill='{land}' stroke='{shore}'/>",
        _text(x + _PAD, y + 23, "island", 12, fill=shore),
        _text(x + _PAD + _ISLAND_WORD, y + 23, grid.head, 14, weight=600, fill=shore),
    ]
    first = x + (width - (grid.columns * grid.step - _GAP)) // 2
    for i, rank in enumerate(island.ranks):
        cx = first + (i % _COLUMNS) * grid.step + (grid.step - _GAP) // 2
        cy = y + _HEAD + (i // _COLUMNS) * grid.row + _DOT // 2
        number = str(rank.number)
        out.append(f"<g><title>{escape(rank.device_name or rank.device)}</title>")
        out.append(f"<circle cx='{cx}' cy='{cy}' r='{_DOT // 2}' fill='#ffffff' stroke='{shore}' stroke-width='2'/>")
        out.append(_text(cx, cy + 6, number, 16 if len(number) < 4 else 11, weight=600, anchor="middle"))
        for n, label in enumerate(_labels(rank), 1):
            out.append(_text(cx, cy + _DOT // 2 + _LINE * n, label, 10, anchor="middle", fill="#7b8794"))
        out.append("</g>")
    return out


def _road(ends: list[tuple[int, int]], y: int, name: str) -> list[str]:
    """A road at height `y` with a stem to each end, and its name on a sign."""
    first, last = min(x for x, _ in ends), max(x for x, _ in ends)
    path = "".join(f"M{x} {bottom}V{y}" for x, bottom in ends) + f"M{first} {y}H{last}"
    middle, half = (first + last) // 2, ceil(text_width(name, 13)) // 2 + 14
    return [
        f"<path d='{path}' fill='none' stroke='{_ROAD}' stroke-width='5' stroke-linecap='round' stroke-linejoin='round'/>",
        f"<rect x='{middle - half}' y='{y - 13}' width='{2 * half}' height='26' rx='13' fill='{_ROAD}'/>",
        _text(middle, y + 5, name, 13, weight=600, anchor="middle", fill="#ffffff"),
    ]


def _text(x: int, y: int, text: str, size: int, *, weight: int = 400, anchor: str = "start", fill: str = "#243b53") -> str:
    return (
        f"<text x='{x}' y='{y}' font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' fill='{fill}'>"
        f"{escape(text)}</text>"
    )
