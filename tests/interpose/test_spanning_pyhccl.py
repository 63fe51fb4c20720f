"""pyhccl, a client of HCCL that knows nothing of Isthmus, in jobs of several simulated vendors.

The jobs of test_spanning_hccl.py, where the ranks of HCCL call it by pyhccl, those of NVIDIA and AMD are the C programs, and
what they get is compared with NumPy there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import test_spanning_hccl as jobs
from doors import HERE, preloaded

pytest.importorskip("pyhccl", reason="pyhccl has no wheel for this Python")

Programs = dict[str, Path]


@pytest.fixture
def programs(scripted: Programs, tmp_path: Path) -> Programs:
    path = tmp_path / "pyhccl_rank"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "pyhccl_rank.py"}" "$@"\n')
    path.chmod(0o755)
    return scripted | {"hccl": path}


@pytest.mark.product(8)
@preloaded
@pytest.mark.parametrize(
    "job",
    [
        lambda programs: jobs.test_every_reduction_of_every_type("hnahan", "", programs),
        lambda programs: jobs.test_every_reduction_of_every_type("hhh", "xyx", programs),
        lambda programs: jobs.test_what_moves_without_adding("nahha", programs),
        lambda programs: jobs.test_reduce_gives_the_root_alone("nhah", programs),
        jobs.test_long_messages,
        jobs.test_what_hccl_alone_has_between_islands_of_its_own,
        lambda programs: jobs.test_blocks_of_different_sizes_between_vendors("hah", programs),
        jobs.test_messages_between_vendors,
        lambda programs: jobs.test_nothing_of_it_is_a_success("hn", "", programs),
        jobs.test_a_group_of_collectives_begins_when_it_ends,
        lambda programs: jobs.test_whoever_makes_the_id_its_last_bytes_are_the_others("nah", -1, programs),
        lambda programs: jobs.test_whoever_makes_the_id_its_last_bytes_are_the_others("hhaanh", 0, programs),
        jobs.test_a_configuration_gives_the_name,
        jobs.test_the_ranks_of_hccl_alone_get_the_library,
        jobs.test_parts_are_hccls_own_or_span_islands,
    ],
    ids=[
        "reductions of several vendors", "reductions of islands of Ascend", "moves", "reduce", "long messages",
        "what HCCL alone has", "blocks of different sizes", "messages", "nothing", "a group", "an id of Ascend's",
        "an id for six", "a configuration", "one vendor", "parts",
    ],
)  # fmt: skip
def test_pyhccl_does_what_a_c_program_does(job: Callable[[Programs], None], programs: Programs) -> None:
    job(programs)
