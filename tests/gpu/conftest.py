"""The tests of tests/python lend their ranks and their matrix, those of tests/interpose what a front door says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.path.append(str(Path(__file__).parents[1] / "interpose"))
