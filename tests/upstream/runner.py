"""Runs PyTorch's own distributed tests, from inside the installed wheel, on the backend "isthmus".

The suite decides at import, by the backend's name, which tests apply. Masks make it apply nearly all that can run on CPUs:

  plain       under our own name, admitted as a backend that can do everything
  gloo        imported under the name gloo, run under ours
  gloo_init   imported and run under the name gloo, but every group that is made is ours
  mpi         as gloo, under the name mpi: it alone has the tests of all_to_all on lists

It writes {test: outcome} as JSON; outcomes are passed, skipped, failed. Ranks are forked, which takes a tenth of the time of
fresh interpreters, and is safe because this process starts no thread and calls no collective itself.

    python tests/upstream/runner.py --mask gloo --out results.json [--world 3] [--only FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

MASKS = ("plain", "gloo", "gloo_init", "mpi")
NAME = "isthmus"


def load(mask: str, folder: str, world: int) -> type[unittest.TestCase]:
    """The suite as one test class, made ready for `mask`."""
    os.environ.update(
        BACKEND={"plain": NAME, "gloo_init": "gloo"}.get(mask, mask),
        WORLD_SIZE=str(world),
        TEMP_DIR=folder,
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="300",
    )
    for name in ("barrier", "test_dir"):
        (Path(folder) / name).mkdir()

    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases

    import isthmus.torch  # noqa: F401

    torch.set_num_threads(1)
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(NAME)

    import torch.testing._internal.distributed.distributed_test as suite

    if mask == "gloo_init":
        make = dist.init_process_group

        def translated(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
            make(NAME if backend == "gloo" else backend, *args, **kwargs)

        dist.init_process_group = translated
    else:
        suite.BACKEND = NAME

    class Upstream(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return Upstream


class Outcomes(unittest.TestResult):
    """Collects one word for each test and says how it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, word: str, text: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.words[name] = word
        print(f"== {name}: {word}", flush=True)
        if text:
            print(text, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mask", choices=MASKS, required=True)
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--only", type=Path, help="a file with the names of the tests to run, one a line")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="isthmus-upstream-") as folder:
        upstream = load(arguments.mask, folder, arguments.world)
        names = unittest.TestLoader().getTestCaseNames(upstream)
        if arguments.only:
            wanted = arguments.only.read_text().split()
            missing = sorted(set(wanted) - set(names))
            if missing:
                sys.exit(f"{arguments.only}: this torch has no {', '.join(missing)}")
            names = wanted
        outcomes = Outcomes()
        unittest.TestSuite(upstream(name) for name in names).run(outcomes)
        arguments.out.write_text(json.dumps(outcomes.words, indent=1))


if __name__ == "__main__":
    main()
