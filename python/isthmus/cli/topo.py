"""`isthmus topo`: hosts, islands, ranks and links."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from .. import init
from .common import add_rank_options, ask_ranks, mark, under_launcher, whole_topology
from .layout import Layout
from .svg import draw


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "topo",
        help="hosts, islands, ranks and links",
        description="Shows what Isthmus found: under torchrun, mpirun or srun for that job, else for local ranks.",
    )
    add_rank_options(parser)
    parser.add_argument("--json", action="store_true", help="print the data")
    parser.add_argument("--svg", metavar="FILE", help="write a drawing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if under_launcher() and options.ranks is None:
        with init() as comm:
            topology = whole_topology(comm)
            if comm.rank != 0:
                return 0
    else:
        topology = ask_ranks("topology", {}, options)
    topology = mark(topology)
    if options.svg:
        Path(options.svg).write_text(draw(Layout(topology)), encoding="utf-8")
    if options.json:
        print(json.dumps(topology, indent=2))
    else:
        show(Console(), Layout(topology))
        if options.svg:
            print(f"drawing: {options.svg}")
    return 0


def show(console: Console, layout: Layout) -> None:
    """The layout as a tree."""
    tree = Tree(f"[bold]{escape(layout.title)}[/bold]")
    for host in layout.hosts:
        branch = tree.add(f"host [cyan]{escape(host.title())}[/cyan]")
        for island in host.islands:
            inside = f", {island.inside} inside" if island.inside else ""
            leaf = branch.add(f"island [magenta]{escape(island.label)}[/magenta]  ({island.size()}{inside})")
            for rank in island.ranks:
                device = f"{rank.device} ({rank.device_name})" if rank.device_name else rank.device
                numa = f"  NUMA {rank.numa}" if rank.numa >= 0 else ""
                leaf.add(f"rank {rank.number}  {escape(device)}  pid {rank.pid}{numa}")
        if host.bridge:
            branch.add(f"between these islands: [green]{host.bridge}[/green]")
    if layout.bridge:
        tree.add(f"between hosts: [green]{layout.bridge}[/green]")
    console.width = 1000  # no line is broken, so that programs may read them
    console.print(tree, highlight=False)
