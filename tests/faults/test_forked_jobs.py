"""The ranks of the fault tests begin at once: they are forked from a process that has what they need."""

from __future__ import annotations

import sys

import numpy as np

import jobs
from jobs import Me, Zygote


def test_a_rank_that_joins_the_others_and_reduces_imports_nothing(zygote: Zygote) -> None:
    """Half of a short rank's processor time went into imports."""

    def body(me: Me) -> list[str]:
        me.init().all_reduce(np.ones(8, np.float32))
        return sorted(set(sys.modules) - jobs.AT_FORK)

    with jobs.job(zygote, 2, body) as ranks:
        for imported in jobs.results(ranks):
            assert imported == []
