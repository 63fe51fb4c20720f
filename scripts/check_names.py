#!/usr/bin/env python3
"""A class name stands once in the house, and once in the rehearsal. One line a breach; exit status 1 if there is one.

The house is csrc/ without csrc/rehearsal. Neither includes the other, and the rehearsal's classes play the house's parts: a
Device, a Stream. So each is checked alone. A class inside another class counts by its inner name.

REPEATS has the names that stand more than once, with the reason. A line of REPEATS that nothing needs is a breach too.
OUTSIDE has the files whose names somebody else has chosen.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from check_sizes import ROOT, SOURCES, Reader

# The declarations of the vendors' functions and structs.
OUTSIDE = re.compile(r"(?:^|/)(?:\w+_)?abi(?:_\w+)?\.hpp$")
REHEARSAL = "csrc/rehearsal/"

REPEATS: dict[str, str] = {
    "Calls": "the functions of a front door; a door is compiled with one of the two",
    "Held": "a lock that is held while the object lives; the class around it is what is locked",
    "Of": "a template's argument: the last operation of a reduction, on one type of numbers",
    "PerDevice": "what a vendor's calls keep of each device; the class around it says whose",
    "State": "the private fields of the class around it",
}


def classes(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Of these files, which are (name, text): the classes, each with the places where its body stands."""
    found: dict[str, list[str]] = {}
    for where, text in texts:
        if OUTSIDE.search(where):
            continue
        for one in Reader(text).read().classes:
            name = one.name.rsplit("::", 1)[-1]
            if not name.startswith("("):
                found.setdefault(name, []).append(f"{where}:{one.line}")
    return found


def check(texts: Iterable[tuple[str, str]], repeats: dict[str, str]) -> list[str]:
    """Breaches of these files, which are (name, text)."""
    breaches, needed = [], set()
    for name, places in sorted(classes(texts).items()):
        for of_rehearsal in (False, True):
            here = [place for place in places if place.startswith(REHEARSAL) == of_rehearsal]
            if len(here) < 2:
                continue
            needed.add(name)
            if name not in repeats:
                breaches.append(f"{here[-1]}: {name} is a class of {', '.join(here[:-1])} too; a name stands once")
    for name, reason in repeats.items():
        if name not in needed:
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
