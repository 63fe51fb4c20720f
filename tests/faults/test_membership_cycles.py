"""Kill, stop, continue, join, cut, in the midst of whatever is done: seeded cycles, of which membership_cycles.py tells."""

from __future__ import annotations

import pytest

from jobs import Zygote
from membership_cycles import CYCLES, Set

FEW, MANY, TOGETHER = 8, 117, 3  # sets; together a thousand cycles


@pytest.mark.product(4)
@pytest.mark.parametrize("seed", range(1, FEW + 1))
def test_whatever_changes_those_who_live_have_one_communicator_and_right_sums(zygote: Zygote, seed: int) -> None:
    Set(zygote, seed).run()


@pytest.mark.everything
@pytest.mark.parametrize("first", range(FEW + 1, FEW + MANY + 1, TOGETHER))
def test_the_same_a_thousand_times_over(zygote: Zygote, first: int) -> None:
    for seed in range(first, first + TOGETHER):
        one = Set(zygote, seed)
        one.run()
        assert sum(one.counts.values()) == CYCLES
