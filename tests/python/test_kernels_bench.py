"""bench/kernels.py: what it makes of a run of reduce_bench, which here is a program that says known figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
SIZES = (16 << 10, 256 << 10, 64 << 20)
COPIES = {"copy": 20e9, "copy+stream": 30e9, "memcpy": 25e9}


def run(
    folder: Path, rates: dict[str, float], bfloat16: float = 60e9
) -> tuple[subprocess.CompletedProcess[str], list[str], Path]:
    """bench/kernels.py with a reduce_bench in which copies have these rates and sums of float32 take 90 GB/s."""
    rates = {**rates, "avx2/float32/sum/2": 90e9, "avx2/bfloat16/sum/2": bfloat16}
    rates |= {"sse4/float32/sum/2": 45e9, "sse4/bfloat16/sum/2": 9e9}
    benchmarks = []
    for name, rate in rates.items():
        for size in SIZES:
            each = {"median": rate, "mean": 1.0, "stddev": 2.0, "cv": 0.01}
            benchmarks += [
                {"run_name": f"{name}/{size}", "aggregate_name": what, "bytes_per_second": figure}
                for what, figure in each.items()
            ]
    program, given, out = folder / "reduce_bench", folder / "arguments", folder / "kernels.json"
    (folder / "said").write_text(json.dumps({"context": {}, "benchmarks": benchmarks}))
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\n"
        f"pathlib.Path({str(given)!r}).write_text('\\n'.join(sys.argv[1:]))\n"
        f"print(pathlib.Path({str(folder / 'said')!r}).read_text())\n"
    )
    program.chmod(0o755)
    files = ["--program", str(program), "--out", str(out)]
    command = [sys.executable, str(ROOT / "bench" / "kernels.py"), *files, "--repetitions", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    return ended, given.read_text().splitlines(), out


def test_each_sum_stands_beside_the_fastest_copy_of_its_run_and_float32(tmp_path: Path) -> None:
    ended, given, out = run(tmp_path, COPIES)
    assert ended.returncode == 0, ended.stderr
    assert "--benchmark_repetitions=3" in given and "--benchmark_enable_random_interleaving=true" in given
    document = json.loads(out.read_text())
    assert [copy["bytes_per_second"] for copy in document["copies"]] == [20e9, 30e9, 25e9] * 3
    rows = {(row["target"], row["dtype"], row["bytes"]): row for row in document["rows"]}
    assert len(rows) == 12
    for size in SIZES:
        half = rows["avx2", "bfloat16", size]
        assert half["copy_bytes_per_second"] == 30e9 and half["of_copy"] == pytest.approx(2.0)
        # 60 GB/s in elements of two bytes, of which three are touched for each sum; float32 has 90 GB/s in those of four.
        assert half["elements_per_second"] == pytest.approx(10e9) and half["variation"] == 0.01
        assert half["elements_of_float32"] == pytest.approx(60 / 2 / (90 / 4))
        assert rows["sse4", "float32", size]["elements_of_float32"] == pytest.approx(1.0), "of the same instructions"
        assert rows["sse4", "float32", size]["of_copy"] == pytest.approx(1.5)
    judged = [line for line in ended.stdout.splitlines() if line.endswith("reached")]
    assert len(judged) == 2, "bfloat16, in the two sizes that lie in a cache, with the best instructions"
    assert all(line.startswith("avx2     bfloat16") and "NOT" not in line for line in judged), judged


def test_a_type_that_is_too_slow_in_a_cache_is_said(tmp_path: Path) -> None:
    ended, _, out = run(tmp_path, COPIES, bfloat16=35e9)  # 0.78 of float32's elements
    assert ended.returncode == 1 and ended.stdout.count("NOT reached") == 2
    assert out.is_file()


def test_a_run_without_copies_measures_nothing_and_writes_nothing(tmp_path: Path) -> None:
    ended, _, out = run(tmp_path, {})
    assert ended.returncode != 0 and "no copy of 16384 bytes" in ended.stderr
    assert not out.exists()
