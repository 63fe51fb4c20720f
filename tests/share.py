"""The part of a long product that one run of the suite takes.

A product is a list of cases that differ in their parameters alone. `make test` runs one share of each product, chosen by
the commit: over a dozen commits or two it is all run. `make test-all` runs all of it. The same seed chooses the same cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def chosen(cases: Iterable[str], seed: str, of: int) -> set[str]:
    """About one case in `of`, and at least one. `seed` "all" chooses every case.

    The cases are dealt out to `of` shares in an order that only their names decide, and the seed names a share. So shares
    are disjoint, and together they are the product.
    """
    dealt = sorted(cases, key=number)
    if seed == "all" or of <= 1:
        return set(dealt)
    share = number(seed) % of
    return set(dealt[share::of] or dealt[share % len(dealt) :][:1])
