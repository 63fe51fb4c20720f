"""Runs torchft's own tests of a process group, those of its wheel, on isthmus.torchft.ProcessGroupIsthmus.

torchft's classes make groups of Gloo and NCCL by name. Here they make ours, of three ranks, and run all eleven of torchft's
collectives, of which Gloo leaves three out. The tests expect an error in the words of Gloo or NCCL; the words of Isthmus are
added to theirs. Writes {test: outcome} as JSON; outcomes are passed, skipped, failed.

    PYTHONPATH=build/torchft python tests/upstream/torchft_runner.py results.json
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torchft.process_group_test as theirs

from isthmus.torchft import ProcessGroupIsthmus
from patience import SOON
from runner import Outcomes

OURS = r"isthmus: (timeout|peer lost|aborted) - "
ALONE = ("test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives")  # of their ProcessGroupTest


class Words(unittest.TestCase):
    def assertRaisesRegex(self, kind: Any, pattern: Any, *arguments: Any, **names: Any) -> Any:
        return super().assertRaisesRegex(kind, f"{pattern}|{OURS}", *arguments, **names)


class Conformance(Words, theirs.MultiPgBaseTest):
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupIsthmus:
        return ProcessGroupIsthmus(timeout=timedelta(seconds=SOON))


def collective(name: str) -> Any:
    return lambda self: self._run_parallel(name)


def resiliency(name: str) -> Any:
    return lambda self: self._run_with_resiliency(name)


for one in theirs._ALL_COLLECTIVES:
    setattr(Conformance, f"test_collective_{one}", collective(one))
    setattr(Conformance, f"test_collective_with_resiliency_{one}", resiliency(one))


class Group(Words, theirs.ProcessGroupTest):
    pass


def main(out: Path) -> None:
    theirs.ProcessGroupGloo = ProcessGroupIsthmus
    suite = unittest.TestSuite([unittest.defaultTestLoader.loadTestsFromTestCase(Conformance)])
    suite.addTests(Group(name) for name in ALONE)
    outcomes = Outcomes()
    suite.run(outcomes)
    out.write_text(json.dumps(outcomes.words, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
