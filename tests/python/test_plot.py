"""bench/plot.py: its pictures say sizes as people write them, and who each line is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patient

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]
SIZES = (8, 256, 8192, 1 << 20, 64 << 20)


def drawn(tmp_path: Path, rows: list[dict[str, object]]) -> str:
    """The SVG of a comparison, with its letters as text."""
    document = {
        "tool": "bench/peers.py", "command": "python bench/peers.py", "date": "2026-01-01", "rows": rows,
        "machine": {"processor": "a processor", "cores": 2},
    }  # fmt: skip
    (tmp_path / "peers.json").write_text(json.dumps(document))
    (tmp_path / "matplotlibrc").write_text("svg.fonttype: none\n")
    words = [sys.executable, str(ROOT / "bench" / "plot.py"), "peers.json"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=patient(120))
    assert (tmp_path / "peers.png").stat().st_size > 1000
    return (tmp_path / "peers.svg").read_text()


def row(part: str, nbytes: int, *names: str) -> dict[str, object]:
    times = {name: [1e-6, 2e-6, 3e-6] for name in names}
    return {"part": part, "collective": "all_reduce", "bytes": nbytes, "seconds": times}


def test_sizes_are_in_bytes_and_each_line_says_who_calls_what(tmp_path: Path) -> None:
    rows = [row("two", nbytes, "isthmus", "openmpi", "torch_gloo") for nbytes in SIZES]
    rows += [row("c", nbytes, "isthmus_c") for nbytes in SIZES[:3]]
    rows += [row("tcp", nbytes, "isthmus_c", "raw_exchange") for nbytes in SIZES[3:]]
    text = drawn(tmp_path, rows)
    for said in (">16 B<", ">1 KiB<", ">32 KiB<", ">1 MiB<", ">32 MiB<", ">all_reduce, two islands over TCP<"):
        assert said in text, said
    for said in ("Isthmus, called from Python (NumPy)", "Isthmus, called from C (isthmus-bench)", "bare sockets: the same"):
        assert said in text, said


def test_a_legend_stands_in_the_panels_where_no_room_is_left(tmp_path: Path) -> None:
    text = drawn(tmp_path, [row("two", nbytes, "isthmus") for nbytes in SIZES])
    assert "Isthmus, called from Python (NumPy)" in text
