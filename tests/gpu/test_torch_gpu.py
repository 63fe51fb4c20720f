"""The torch backend on tensors of GPUs, beside ranks on the CPU in the same group; simulated GPUs where there are none."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import cloudpickle

import test_torch_devices as bodies
from gpu import Gpus, gpus

cloudpickle.register_pickle_by_value(bodies)  # the ranks do not find it
everywhere = pytest.mark.parametrize("where", [g for g in gpus() if g.runtime != "acl"], ids=str)


@everywhere
def test_every_collective_of_torch_on_tensors_of_gpus_and_cpus(where: Gpus) -> None:
    assert min(where.run("ggc", bodies.every_collective, labels="abc", init=False)) > 0


@everywhere
def test_messages_of_torch_between_gpus_and_cpus(where: Gpus) -> None:
    assert min(where.run("ggc", bodies.messages, labels="abc", init=False)) >= 3 * 5


@everywhere
def test_data_parallel_training_over_gpus_and_cpus_keeps_all_ranks_together(where: Gpus) -> None:
    results = where.run("ggc", bodies.data_parallel, labels="abc", init=False)
    assert results[0][0] == results[1][0]
    assert results[0][0] == pytest.approx(
        results[2][0], rel=0, abs=1e-3
    )  # a GPU and a CPU round an optimizer's step in their own ways
    assert all(gained > 0 for _, gained in results)


@everywhere
def test_fsdp2_shards_a_model_over_gpus_and_cpus_and_learns_what_the_whole_model_learns(where: Gpus) -> None:
    kinds = "ccc" if where.simulated else "ggc"  # FSDP2 knows no simulated device: without a GPU the ranks are on the CPU
    for parameters, whole, there in where.run(kinds, bodies.sharded, labels="abc", init=False):
        assert there and parameters == pytest.approx(whole, rel=0, abs=1e-3)
