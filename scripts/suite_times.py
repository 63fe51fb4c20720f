#!/usr/bin/env python3
"""How long the stages of the last run of the suite took, beside the run before: wall time and processor time.

    python scripts/suite_times.py

The stages overlap, so their wall times add up to more than the whole took. build/suite/record.json is the last run,
build/suite/record.before.json the one before of the same kind (`make test` or `make test-all`, all stages of it).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "suite" / "record.json"
BEFORE = RECORD.with_name("record.before.json")


def read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """The same stages of the same kind of run: their times can be compared."""
    kind = [(record["everything"], bool(record.get("part"))) for record in (a, b)]
    return kind[0] == kind[1] and {s["stage"] for s in a["stages"]} == {s["stage"] for s in b["stages"]}


def keep(record: dict[str, Any]) -> None:
    """Writes the record of a run, and keeps the last one that it can be compared with."""
    last = read(RECORD)
    if last and alike(last, record):
        RECORD.replace(BEFORE)
    RECORD.write_text(json.dumps(record, indent=1))


def table() -> str:
    now = read(RECORD)
    if not now:
        return f"no run of the suite is on record ({RECORD.relative_to(ROOT)})"
    before = read(BEFORE)
    if before and not alike(before, now):
        before = None
    old = {stage["stage"]: stage for stage in before["stages"]} if before else {}
    rows = [*now["stages"], {**now, "stage": "in all"}]
    old["in all"] = before or {}
    lines = [f"{'':16} {'wall s':>9} {'core-s':>9}" + (f" {'before':>9} {'core-s':>9}" if before else "")]
    for row in rows:
        line = f"{row['stage']:16} {row['seconds']:9.1f} {row['processor']:9.1f}"
        if was := old.get(row["stage"]):
            grew = row["seconds"] > 1.2 * was["seconds"] + 10
            line += f" {was['seconds']:9.1f} {was['processor']:9.1f}{'  grew' if grew else ''}"
        lines.append(line)
    commits = now["commit"][:12] + (f", before: {before['commit'][:12]}" if before else "")
    return "\n".join([*lines, f"of {commits or 'no commit'}"])


if __name__ == "__main__":
    print(table())
