"""Plots of what peers.py and isthmus-bench --json measured.

    python bench/plot.py bench/results/peers.json      # peers.png and peers.svg beside it
    python bench/plot.py rows.json                     # the same for a file of isthmus-bench --json

matplotlib draws them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

# Of each contender: what it is, colour, mark.
LOOKS = {
    "isthmus": ("Isthmus, called from Python (NumPy)", "#0072b2", "o"),
    "isthmus_c": ("Isthmus, called from C (isthmus-bench)", "#009e73", "D"),
    "torch_isthmus": ("Isthmus as torch.distributed's backend", "#56b4e9", "^"),
    "openmpi": ("Open MPI, called from Python (mpi4py)", "#d55e00", "s"),
    "torch_gloo": ("Gloo as torch.distributed's backend", "#e69f00", "v"),
    "raw_exchange": ("bare sockets: the same bytes each way", "#777777", "x"),
    "raw_round_trip": ("bare sockets: there and back", "#777777", "+"),
}
PARTS = {"two": "two ranks", "four": "four ranks", "tcp": "two islands over TCP"}
TICKS = [1 << power for power in (4, 10, 15, 20, 25, 30)]


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plot: needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "isthmus"  # the same figures give the same file
    import matplotlib.pyplot as plt

    return plt


def finish(figure: Any, text: str, path: Path) -> list[Path]:
    figure.text(0.01, 0.005, text, fontsize=7, family="monospace", color="#444444", wrap=True)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(files[0], dpi=110)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def size_text(count: float) -> str:
    """16 B, 1 KiB, 32 MiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):g} {unit}"
    return f"{count:g} B"


def log_axes(axes: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda value, _: size_text(value))
    axes.minorticks_off()
    axes.set_xlabel("size of the message")
    axes.grid(True, which="major", alpha=0.3)


def plot_peers(document: dict[str, Any], path: Path) -> list[Path]:
    """One panel a collective: median time against size, the bars are the middle half of the rounds."""
    plt = pyplot()
    panels: dict[tuple[str, str], dict[str, list[tuple[int, list[float]]]]] = {}
    for row in document["rows"]:
        part = "two" if row["part"] == "c" else row["part"]
        if part not in PARTS or row["bytes"] == 0:  # a barrier has no size to stand at
            continue
        for name, times in row["seconds"].items():
            if name in LOOKS:
                panels.setdefault((part, row["collective"]), {}).setdefault(name, []).append((row["bytes"], times))
    if not panels:
        return []
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4.4 * columns, 3.6 * lines + 0.5), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    legend: dict[str, Any] = {}
    for axes, ((part, collective), contenders) in zip(grid.flat, panels.items(), strict=False):
        for name, points in contenders.items():
            points.sort()
            middle = [statistics.median(t) * 1e6 for _, t in points]
            ordered = [sorted(t) for _, t in points]
            low = [m - t[len(t) // 4] * 1e6 for m, t in zip(middle, ordered, strict=True)]
            high = [t[-1 - len(t) // 4] * 1e6 - m for m, t in zip(middle, ordered, strict=True)]
            label, colour, mark = LOOKS[name]
            look = {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.3, "capsize": 2}
            legend[label] = axes.errorbar([b for b, _ in points], middle, yerr=[low, high], label=label, **look)
        log_axes(axes)
        axes.set_title(f"{collective}, {PARTS[part]}", fontsize=10)
        axes.set_ylabel("time (us), less is better")
    labels = [label for label, _, _ in LOOKS.values() if label in legend]
    handles = [legend[label] for label in labels]
    if len(panels) < lines * columns:  # in the room that is left
        figure.legend(handles, labels, loc="lower right", fontsize=11, bbox_to_anchor=(0.98, 0.06), frameon=False)
    else:
        for axes in grid.flat:
            axes.legend(fontsize=7)
    machine = document["machine"]
    text = f"{document['command']}   {document['date']}   {machine['processor']}, {machine['cores']} cores"
    return finish(figure, text, path)


def plot_bench(document: dict[str, Any], path: Path) -> list[Path]:
    """isthmus-bench --json: time with its 99th percentile, and bus bandwidth."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    series: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        if row["size"] > 0:
            series.setdefault(f"{row['collective']} {row['type']} {row['redop']}".replace(" none", ""), []).append(row)
    for name, rows in series.items():
        sizes = [r["size"] for r in rows]
        line = left.plot(sizes, [r["out_of_place"]["p50_us"] for r in rows], marker="o", markersize=3, label=name)[0]
        left.plot(sizes, [r["out_of_place"]["p99_us"] for r in rows], linestyle=":", color=line.get_color())
        rates = [max(r["out_of_place"]["bus_bw"], 1e-6) for r in rows]
        right.plot(sizes, rates, marker="o", markersize=3, color=line.get_color())
    for axes, label in ((left, "time (us): median, dotted p99"), (right, "bus bandwidth (GB/s)")):
        log_axes(axes)
        axes.set_ylabel(label)
    left.legend(fontsize=7)
    machine = document["machine"]
    text = f"{' '.join(document['command'])}   {document['date']}   {machine['processor']}, {machine['cores']} cores"
    return finish(figure, text, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON of peers.py or of isthmus-bench --json")
    parser.add_argument("--out", type=Path, help="name of the pictures without its ending (beside the file)")
    args = parser.parse_args()
    document = json.loads(args.file.read_text())
    draw = plot_bench if document.get("tool") == "isthmus-bench" else plot_peers
    files = draw(document, args.out or args.file.with_suffix(""))
    print("\n".join(map(str, files)) if files else "plot: nothing to draw")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
