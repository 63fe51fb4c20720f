"""`make demo` runs two programs beside each other, and what they say comes one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from patience import SOON

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# The first ends once the second has said all that it says: so they run at once.
FIRST = """
import sys, time
from pathlib import Path
print("first begins", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("first ends")
sys.exit(int(sys.argv[2]))
"""
SECOND = """
import sys
from pathlib import Path
print("second, on one", flush=True)
print("second, on the other", file=sys.stderr, flush=True)
Path(sys.argv[1]).touch()
sys.exit(int(sys.argv[2]))
"""
BOTH = """
import sys
sys.path.insert(0, sys.argv[1])
import demo
_, _, first, second, file, one, other = sys.argv
sys.exit(demo.beside([sys.executable, "-c", first, file, one], [sys.executable, "-c", second, file, other]))
"""


@pytest.mark.parametrize(("first", "second", "status"), [(0, 0, 0), (3, 0, 3), (0, 4, 4), (3, 4, 3)])
def test_programs_run_beside_each_other_and_speak_one_after_the_other(
    first: int, second: int, status: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", BOTH, str(SCRIPTS), FIRST, SECOND, str(tmp_path / "said"), str(first), str(second)]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=SOON)
    order = ["first begins", "first ends", "second, on one", "second, on the other"]
    assert ended.stdout.splitlines() == order, ended.stdout + ended.stderr
    assert ended.returncode == status
