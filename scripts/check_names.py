#!/usr/bin/env python3
"""A class name stands once in csrc/. One line a breach; exit status 1 if there is one.

The names are those of the classes of a namespace. A class inside another class is called by both names, so Outer::Inner
is a name of its own. REPEATS has the names that stand more than once, with the reason. A line of REPEATS that nothing
needs is a breach too. OUTSIDE has the files whose names somebody else has chosen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from check_sizes import ROOT, SOURCES, Reader

# The rehearsal's own copies of the vendors' libraries, and the declarations of the vendors' functions and structs.
OUTSIDE = re.compile(r"^csrc/rehearsal/|(?:^|/)(?:\w+_)?abi(?:_\w+)?\.hpp$")

REPEATS: dict[str, str] = {
    "Calls": "the functions of a front door; a door is compiled with one of the two",
}


def classes(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Of these files, which are (name, text): the classes of namespaces, each with the places where its body stands."""
    found: dict[str, list[str]] = {}
    for where, text in texts:
        if OUTSIDE.search(where):
            continue
        for one in Reader(text).read().classes:
            if "::" not in one.name and not one.name.startswith("("):
                found.setdefault(one.name, []).append(f"{where}:{one.line}")
    return found


def check(texts: Iterable[tuple[str, str]], repeats: dict[str, str]) -> list[str]:
    """Breaches of these files, which are (name, text)."""
    breaches = []
    repeated = {name: places for name, places in sorted(classes(texts).items()) if len(places) > 1}
    for name, places in repeated.items():
        if name not in repeats:
            breaches.append(f"{places[-1]}: {name} is a class of {', '.join(places[:-1])} too; a name stands once")
    for name, reason in repeats.items():
        if name not in repeated:
            breaches.append(f"scripts/check_names.py: {name!r} stands once; take the line out")
        if not reason.strip():
            breaches.append(f"scripts/check_names.py: {name!r} has no reason")
    return breaches


def main() -> int:
    paths = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in SOURCES)
    texts = [(str(p.relative_to(ROOT)), p.read_text()) for p in paths]
    breaches = check(texts, REPEATS)
    for breach in breaches:
        print(breach)
    print(f"names: {len(classes(texts))} classes, {len(REPEATS)} repeats, {len(breaches)} breaches")
    return 1 if breaches or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
