"""`isthmus trace`: where the time of a job's collectives went."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from .. import _trace
from .._errors import ArgumentError

MOST_RANKS = 16
LOSSY = 0.002  # of the segments of a connection that were sent more than once
FEWEST = 0.02  # smaller parts of a rank's time are not shown


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="where the time of a job's collectives went",
        description="Reads the files that a job with ISTHMUS_TRACE has written, one of each rank, and says which rank calls "
        "late, and what each one's time in a collective goes to.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of all ranks; ISTHMUS_DUMP's of such a job too")
    parser.add_argument(
        "-o", "--timeline", type=Path, metavar="FILE", help="write the timeline, for Perfetto or about:tracing"
    )
    parser.add_argument("--most", type=int, default=10, metavar="N", help="kinds of calls that are shown (default 10)")
    parser.add_argument("--json", action="store_true", help="print the data")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    ranks, notes = _trace.read(options.files)
    if not ranks:
        raise ArgumentError("the files have no record of a communicator")
    if options.timeline:
        options.timeline.write_text(json.dumps(_trace.timeline(ranks)))
    rehearsal = next((rank.rehearsal for rank in ranks if rank.rehearsal), None)
    kinds = [group for together in _trace.communicators(ranks) for group in _trace.groups(together)]
    kinds.sort(key=lambda group: -group.total)
    notes += [note for together in _trace.communicators(ranks) for note in _notes(together)] + list(_process_notes(ranks))
    if options.json:
        mark = {"rehearsal": rehearsal} if rehearsal else {}
        print(json.dumps({**mark, "calls": [_data(group) for group in kinds], "notes": notes}, indent=2))
        return 0
    if rehearsal:
        print(f"rehearsal of {rehearsal}: devices are simulated, and no time below is a measurement of one")
    most = max(options.most, 0)
    for group in kinds[:most]:
        print("\n".join(_lines(group)))
    if len(kinds) > most:
        print(f"... and {len(kinds) - most} kinds of calls that took less time (--most)")
    for note in notes:
        print(f"note: {note}")
    if options.timeline:
        print(f"wrote {options.timeline}: open it in ui.perfetto.dev or about:tracing")
    return 0


def _lines(group: _trace.Group) -> Iterator[str]:
    collective, dtype, nbytes = group.shape
    times = f"{len(group.seconds)} times" if len(group.seconds) > 1 else "once"
    yield f"{collective} of {_bytes(nbytes)} {dtype}, '{group.communicator}', {group.size} ranks, {times}"
    begins = "from the last rank's call to the end" if group.spread else "on the slowest rank"
    yield f"  time    {_time(median(group.seconds))} {begins}{_range(group.seconds)}"
    if group.spread:
        rank, often = group.last.most_common(1)[0]
        behind = f"{_time(median(group.spread))} behind the first{_range(group.spread)}"
        yield f"  calls   rank {rank} is last {often} of {len(group.spread)} times; the last is {behind}"
    for number, shares in list(group.shares.items())[:MOST_RANKS]:
        yield f"  rank {number:<3}{', '.join(_shares(shares)) or 'no step was noted'}"
    if len(group.shares) > MOST_RANKS:
        yield f"  ... and {len(group.shares) - MOST_RANKS} ranks more (--json has all)"
    yield f"  → {group.verdict}"


def _shares(shares: dict[tuple[str, int], float]) -> Iterator[str]:
    yield from (f"{_trace.in_words(*what)} {part:.0%}" for what, part in shares.items() if part >= FEWEST)


def _notes(ranks: list[_trace.RankTrace]) -> Iterator[str]:
    name = ranks[0].communicator
    missing = sorted(set(ranks[0].members) - {rank.rank for rank in ranks})
    if missing:
        yield f"of '{name}' there is no record of {_ranks(missing)}"
    failed = sum(rank.failed for rank in ranks)
    if failed:
        yield f"{failed} operations of '{name}' failed on one rank or more, and are not counted"
    apart, told = _trace.clocks(ranks)
    if apart > 0:
        yield f"the clocks of the hosts of '{name}' are at least {_time(apart * 1e-6)} apart, so who calls last is not said"
    elif not told:
        yield f"nothing shows how far the clocks of the hosts of '{name}' agree"


def _process_notes(ranks: list[_trace.RankTrace]) -> Iterator[str]:
    """Of each process once."""
    for rank in {(rank.boot, rank.pid): rank for rank in ranks}.values():
        who = f"process {rank.pid} on {rank.host} (rank {rank.rank} of '{rank.communicator}')"
        for what, setting in (("steps", "ISTHMUS_TRACE_STEPS"), ("operations", "ISTHMUS_RECORDER_ENTRIES")):
            if rank.lost[what]:
                yield f"older {what} of {who} are lost ({setting})"
        for way in rank.connections:
            again, segments = int(way["sent_again"]), int(way["segments"])
            if again > LOSSY * segments and again > 10:
                ends = f"from {way['from']} to {way['hostname']} ({way['to']})"
                yield f"the way of {who} {ends} loses data: {again} of {segments} segments were sent again"


def _ranks(numbers: list[int]) -> str:
    some = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {some}"


def _data(group: _trace.Group) -> dict[str, Any]:
    collective, dtype, nbytes = group.shape
    return {
        "communicator": group.communicator,
        "size": group.size,
        "collective": collective,
        "dtype": dtype,
        "bytes": nbytes,
        "seconds": group.seconds,
        "spread_seconds": group.spread,
        "last": {str(rank): often for rank, often in group.last.items()},
        "shares": {
            str(rank): [{"what": what, "peer": peer, "share": share} for (what, peer), share in shares.items()]
            for rank, shares in group.shares.items()
        },
        "verdict": group.verdict,
    }


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _range(seconds: list[float]) -> str:
    return f" ({_time(min(seconds))} to {_time(max(seconds))})" if len(seconds) > 1 else ""


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} B"
