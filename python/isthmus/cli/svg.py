"""A topology as a drawing: hosts are frames, islands are land, ranks are dots on it, bridges are roads."""

from __future__ import annotations

from xml.sax.saxutils import escape

from .layout import Host, Island, Layout

_FONT = "font-family='Inter, Segoe UI, Helvetica, Arial, sans-serif'"
_LAND = ["#dcefdc", "#fdebc8", "#dfe6fb", "#f6dce9", "#d9f0f2", "#ece3f7", "#f4e3d7", "#e6eccb"]
_SHORE = ["#4f9a55", "#d0902a", "#5b74d6", "#c2588f", "#2f97a3", "#8863c0", "#b8703f", "#869a2e"]
_ROAD = "#52606d"
_DOT, _GAP, _PAD = 46, 14, 18
_COLUMNS = 4  # ranks in a row of an island
_HOST_WIDTH = 1100  # an island that would make its host wider starts a new row
_HEAD, _FOOT = 34, 58


def _island_size(island: Island) -> tuple[int, int]:
    columns = min(_COLUMNS, len(island.ranks))
    rows = -(-len(island.ranks) // _COLUMNS)
    width = max(columns * (_DOT + _GAP) - _GAP + 2 * _PAD, 14 * 2 + 8 * len(island.label) + 70, 150)
    return width, _HEAD + rows * (_DOT + _GAP) - _GAP + _PAD


class _Host:
    """Where the islands of a host lie, relative to its corner."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.rows: list[list[tuple[Island, int, int, int]]] = [[]]  # island, x, width, height
        x = widest = _PAD
        for island in host.islands:
            width, height = _island_size(island)
            if self.rows[-1] and x + width + _PAD > _HOST_WIDTH:
                self.rows.append([])
                x = _PAD
            self.rows[-1].append((island, x, width, height))
            x += width + 2 * _PAD
            widest = max(widest, x - _PAD)
        foot = _FOOT if host.bridge else _PAD
        self.row_heights = [max(height for *_, height in row) + foot for row in self.rows]
        self.width = max(widest, 8 * len(host.name) + 90)
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
    width = max(width, 9 * len(layout.title) + 2 * margin)
    foot = _FOOT if layout.bridge else 0
    top = 64
    height = top + sum(max(h.height for h in row) + foot + margin for row in rows)
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {_FONT}>",
        f"<title>{escape(layout.title)}</title>",
        f"<rect width='{width}' height='{height}' fill='#eef5fa'/>",
        _text(margin, 42, layout.title, 20, weight=600),
    ]
    y = top
    number = 0
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
            number = _draw_islands(out, host, x, y, number)
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
        + _text(x + _PAD + 32, y + 23, host.host.name, 13, weight=600)
    )


def _draw_islands(out: list[str], host: _Host, left: int, top: int, number: int) -> int:
    y = top + _HEAD
    for row, row_height in zip(host.rows, host.row_heights, strict=True):
        if host.host.bridge:
            ends = [(left + x + width // 2, y + height) for _, x, width, height in row]
            out += _road(ends, y + row_height - 26, host.host.bridge)
        for island, x, width, height in row:
            out += _island(left + x, y, width, height, island, number)
            number += 1
        y += row_height
    return number


def _island(x: int, y: int, width: int, height: int, island: Island, number: int) -> list[str]:
    land, shore = _LAND[number % len(_LAND)], _SHORE[number % len(_SHORE)]
    out = [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='20' fill='{land}' stroke='{shore}'/>",
        _text(x + _PAD, y + 23, "island", 12, fill=shore),
        _text(x + _PAD + 42, y + 23, island.label, 14, weight=600, fill=shore),
    ]
    columns = min(_COLUMNS, len(island.ranks))
    first = x + (width - (columns * (_DOT + _GAP) - _GAP)) // 2
    for i, rank in enumerate(island.ranks):
        cx = first + (i % _COLUMNS) * (_DOT + _GAP) + _DOT // 2
        cy = y + _HEAD + (i // _COLUMNS) * (_DOT + _GAP) + _DOT // 2
        out.append(f"<circle cx='{cx}' cy='{cy}' r='{_DOT // 2}' fill='#ffffff' stroke='{shore}' stroke-width='2'/>")
        out.append(_text(cx, cy + 3, str(rank.number), 16, weight=600, anchor="middle"))
        out.append(_text(cx, cy + 15, rank.device, 9, anchor="middle", fill="#7b8794"))
    return out


def _road(ends: list[tuple[int, int]], y: int, name: str) -> list[str]:
    """A road at height `y` with a stem to each end, and its name on a sign."""
    first, last = min(x for x, _ in ends), max(x for x, _ in ends)
    path = "".join(f"M{x} {bottom}V{y}" for x, bottom in ends) + f"M{first} {y}H{last}"
    middle, half = (first + last) // 2, 5 * len(name) + 14
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
