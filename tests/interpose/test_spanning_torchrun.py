"""`isthmus run -- torchrun ...` on the hosts of each vendor, in one job."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from doors import HERE, preloaded
from isthmus import launch
from patience import SOON, patient
from spanning import HANDED, SPANS, environment
from test_interpose_real import none_installed  # noqa: F401

pytestmark = [preloaded, pytest.mark.usefixtures("none_installed"), pytest.mark.computes]
TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.mark.product(4)
@pytest.mark.parametrize("vendors", ["na", "nn"])
def test_a_script_for_torchrun_sums_over_the_vendors(vendors: str) -> None:
    """Two nodes with two ranks each. What `isthmus run` sets reaches the ranks, which torchrun starts."""
    pytest.importorskip("torch")
    port = launch.free_port()
    nodes = []
    for number, letter in enumerate(vendors):
        given = environment(letter, behind=False) | {"ISTHMUS_LOG": "info", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "isthmus", "run", "--interpose", "--", str(TORCHRUN)]
        words += ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "2"]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(HERE / "torchrun_rank.py")]
        nodes.append(subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [node.communicate(timeout=patient(120)) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()  # torchrun ends its ranks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.communicate(timeout=SOON)
            node.kill()
    for number, node in enumerate(nodes):
        out, err = ended[number]
        assert node.returncode == 0, out + err
        assert sorted(out.splitlines()) == [f"rank {2 * number + k} of 4: right" for k in range(2)]
        assert err.count(SPANS if vendors != "nn" else HANDED) == 2, err
