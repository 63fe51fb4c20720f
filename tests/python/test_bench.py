"""isthmus-bench: its table, files, status and launchers, and that its check and its counters see what they look for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus import launch
from isthmus.cli import bench
from patience import patient

PACKAGE = Path(isthmus.__file__).resolve().parent
COLLECTIVES = (
    "all_reduce reduce broadcast all_gather all_gather_v reduce_scatter all_to_all all_to_all_v gather scatter "
    "sendrecv barrier"
).split()
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
NOT_IN_PLACE = ("all_to_all_v", "gather", "scatter", "sendrecv", "barrier")

# nccl-tests prints a row as "%12li  %12li  %8s  %6s  %6s" and, out of place and in place, "  %7s  %6s  %6s  %6g".
WIDTHS = (12, 12, 8, 6, 6, *(7, 6, 6, 6) * 2)


@dataclass(frozen=True)
class Side:
    """One half of a row: out of place, or in place. `wrong` is None where nothing was checked."""

    time: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    size: int
    count: int
    type: str
    redop: str
    root: int
    sides: tuple[Side, Side]


def environment(**more: str) -> dict[str, str]:
    """Ours, without what any launcher said."""
    clean = launch.environment(0, 1, 1)
    named = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {k: v for k, v in clean.items() if not k.startswith("ISTHMUS_") and k not in named} | more


def program() -> str:
    found = bench.find_benchmark()
    assert found == PACKAGE / "bin" / "isthmus-bench"
    return str(found)


def run(
    *arguments: str, launcher: Sequence[str] = (), env: dict[str, str] | None = None, status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """The bench, to its end, which must have this status, if any is given."""
    ended = subprocess.run(
        [*launcher, program(), *arguments],
        env=environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(280),
        check=False,
    )
    said = f"exit status {ended.returncode}, expected {status}\n{ended.stdout}{ended.stderr}"
    assert status in (None, ended.returncode), said
    return ended


def table(output: str) -> dict[str, list[Row]]:
    """The rows of every collective, read as nccl-tests' are: comments start with #, and blanks separate the columns."""
    found: dict[str, list[Row]] = {}
    for line in output.splitlines():
        if line.startswith("# Collective test starting: "):
            found[line.split(": ")[1]] = rows = []
        elif not line.startswith("#"):
            size, count, dtype, redop, root, *sides = line.split()
            assert len(sides) == 8, line
            halves = [
                Side(float(t), float(a), float(b), None if w == "N/A" else int(w)) for t, a, b, w in (sides[:4], sides[4:])
            ]
            rows.append(Row(int(size), int(count), dtype, redop, int(root), (halves[0], halves[1])))
    return found


def bus_factor(collective: str, n: int) -> float:
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    return 1 if collective in ("broadcast", "reduce", "sendrecv") else (n - 1) / n


def check_rows(found: dict[str, list[Row]], each: int) -> None:
    """Every collective has its rows, and not one wrong element in those that ran."""
    assert list(found) == COLLECTIVES
    for collective, rows in found.items():
        assert len(rows) == (1 if collective == "barrier" else each), collective
        for row in rows:
            out, within = row.sides
            assert out.time > 0 and out.wrong == 0, (collective, row)
            assert within.wrong == (None if collective in NOT_IN_PLACE else 0), (collective, row)
            assert (within.time == 0) == (collective in NOT_IN_PLACE), (collective, row)


# ---- the table


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_table_has_nccl_tests_columns_and_means_the_same(ranks: int) -> None:
    ended = run("all_reduce", "--ranks", str(ranks), "-b", "8", "-e", "4K", "-f", "2", "-n", "20")
    lines = [line for line in ended.stdout.splitlines() if not line.startswith("#")]
    for line in lines:
        assert line == "  ".join(cell.rjust(width) for cell, width in zip(line.split(), WIDTHS, strict=True))
    header = next(line for line in ended.stdout.splitlines() if line.startswith("#       size"))
    assert header.split() == ("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong".split())
    (rows,) = table(ended.stdout).values()
    assert [row.size for row in rows] == [8 << i for i in range(10)]
    factor = 2 * (ranks - 1) / ranks
    for row in rows:
        assert (row.count * 4, row.type, row.redop, row.root) == (row.size, "float", "sum", -1)
        for side in row.sides:
            assert side.wrong == 0 and side.time > 0
            bandwidth = row.size / side.time * 1e-3  # bytes a microsecond are MB/s
            # Two decimals were printed: of the time, which moves the quotient, and of the quotient.
            assert side.algbw == pytest.approx(bandwidth, abs=0.006 + bandwidth * 0.006 / side.time), row
            assert side.busbw == pytest.approx(side.algbw * factor, abs=0.006 * (1 + factor)), row


def test_every_collective_type_and_operation_is_right() -> None:
    ended = run(*"all -d all -o all --ranks 3 --threads -b 1000 -e 20000 -f 20 -n 3 -w 1".split())
    found = table(ended.stdout)
    assert list(found) == COLLECTIVES
    combinations = {(row.type, row.redop) for row in found["all_reduce"]}
    assert {dtype for dtype, _ in combinations} >= {"int8", "uint64", "half", "bfloat16", "f8e4m3", "complex128", "bool"}
    assert {op for _, op in combinations} == set("sum avg prod min max band bor bxor mulsum".split())
    for collective, rows in found.items():
        if collective != "barrier":
            # Each twice: for the small size and for the large one.
            expected = 2 * (len(combinations) if collective in REDUCING else len({dtype for dtype, _ in combinations}))
            assert len(rows) == expected, collective
        for row in rows:
            assert row.sides[0].wrong == 0, (collective, row)
            assert row.sides[1].wrong == (None if collective in NOT_IN_PLACE else 0), (collective, row)
    assert ended.stdout.count("# Out of bounds values : 0 OK") == len(COLLECTIVES)


@pytest.mark.parametrize(("islands", "expected"), [("a:2,b:2", "aabb"), ("a:1,b:1,a:1,b:1", "abab")])
def test_every_collective_is_right_on_two_islands_over_tcp(islands: str, expected: str) -> None:
    ended = run(*f"all --ranks 4 --islands {islands} --bridge tcp -b 64K -e 64K -n 3".split())
    check_rows(table(ended.stdout), 1)
    labels = re.findall(r"^#  Rank +\d+ .*, island (\w)$", ended.stdout, re.M)
    assert "".join(labels[:4]) == expected


def test_sizes_roots_threads_and_checks_are_as_asked() -> None:
    def rows(arguments: str) -> list[Row]:
        (found,) = table(run(*arguments.split()).stdout).values()
        return found

    assert [row.size for row in rows("all_reduce --ranks 4 -t 2 -b 8 -e 24 -i 8 -n 2")] == [8, 16, 24]
    assert [row.root for row in rows("reduce --ranks 3 --threads -r all -b 8 -e 8 -n 2")] == [0, 1, 2]
    (unchecked,) = rows("all_reduce --ranks 2 -b 8 -e 8 -n 2 -c 0")
    assert [side.wrong for side in unchecked.sides] == [None, None]


SPOILER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include "isthmus/isthmus.h"

isthmus_result isthmus_all_reduce(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                  isthmus_redop op, const isthmus_call *call, isthmus_work_t *work) {
  isthmus_result (*real)(isthmus_comm_t, const void *, void *, uint64_t, isthmus_dtype, isthmus_redop, const isthmus_call *,
                         isthmus_work_t *) = dlsym(RTLD_NEXT, "isthmus_all_reduce");
  const isthmus_result result = real(comm, send, recv, count, dtype, op, call, work);
  if (count == 100) ((float *)recv)[99] += 1;
  return result;
}
"""


def test_one_wrong_element_is_counted_and_ends_with_1(tmp_path: Path) -> None:
    """A library that stands before ours adds 1 to the last of 100 elements, on both ranks, and leaves other sizes alone."""
    compiler = shutil.which("cc")
    assert compiler, "the sources are built with a C compiler, and this test needs it too"
    (tmp_path / "spoiler.c").write_text(SPOILER)
    spoiler = tmp_path / "spoiler.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{PACKAGE / 'include'}", "-o", spoiler, tmp_path / "spoiler.c", "-ldl"], check=True
    )
    arguments = "all_reduce --ranks 2 -b 200 -e 400 -f 2 -n 3".split()
    ended = run(*arguments, "--json", str(tmp_path / "json"), env={"LD_PRELOAD": str(spoiler)}, status=1)
    (rows,) = table(ended.stdout).values()
    assert [[side.wrong for side in row.sides] for row in rows] == [[0, 0], [2, 2]]
    assert "# Out of bounds values : 4 FAILED" in ended.stdout
    written = json.loads((tmp_path / "json").read_text())
    assert written["wrong"] == 4 and written["ok"] is False


# ---- the files


def test_json_has_every_figure_and_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = [*"all --ranks 2 -b 256K -e 256K -n 20".split(), "--json", str(file)]
    before = datetime.now().replace(microsecond=0)
    shown = table(run(*arguments).stdout)
    written: dict[str, Any] = json.loads(file.read_text())
    assert before <= datetime.strptime(written["date"], "%Y-%m-%d %H:%M:%S") <= datetime.now()
    assert written["ranks"] == 2 and written["ok"] is True and written["simulated"] is False
    assert written["machine"]["cores"] == os.cpu_count() and written["version"] == isthmus.__version__
    assert [row["collective"] for row in written["rows"]] == COLLECTIVES
    for row in written["rows"]:
        name = row["collective"]
        assert (row["in_place"] is None) == (name in NOT_IN_PLACE)
        for figures, side in zip((row["out_of_place"], row["in_place"]), shown[name][0].sides, strict=True):
            if figures is None:
                continue
            assert figures["wrong"] == 0 and figures["iterations"] == 20
            assert 0 < figures["min_us"] <= figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]
            assert figures["slowest_rank"] in (0, 1) and figures["slowest_rank_us"] >= figures["time_us"] > 0
            assert figures["time_us"] == pytest.approx(side.time, abs=0.6)  # "%7.1f", "%7.0f" where it is long
            assert figures["bus_bw"] == pytest.approx(figures["alg_bw"] * bus_factor(name, 2))
            if name == "barrier":
                assert figures["limit"] is None
                continue
            assert figures["alg_bw"] == pytest.approx(row["size"] / figures["time_us"] * 1e-3)
            limit = figures["limit"]
            assert limit["kind"] == "memory" and limit["bytes"] > 0
            assert limit["us"] == pytest.approx(limit["bytes"] / limit["bytes_per_s"] * 1e6)
            assert limit["percent"] == pytest.approx(100 * limit["us"] / figures["time_us"])
            if name == "all_reduce":  # every input read once, every output written once
                assert limit["bytes"] == 4 * row["size"]


def test_the_bus_bandwidth_of_each_collective_has_its_factor(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run(*"all --ranks 4 --threads -b 4K -e 4K -n 3".split(), "--json", str(file))
    for row in json.loads(file.read_text())["rows"]:
        figures = row["out_of_place"]
        assert figures["bus_bw"] == pytest.approx(figures["alg_bw"] * bus_factor(row["collective"], 4)), row["collective"]


def test_the_files_hold_the_command_as_it_was_given(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    arguments = [*"broadcast --ranks 2 -b 8 -e 8 -n 2".split(), "--json", str(ours), "-J", str(theirs)]
    run(*arguments)
    assert json.loads(ours.read_text())["command"] == [program(), *arguments]
    assert json.loads(theirs.read_text())["args"] == [program(), *arguments]


def test_nccl_tests_json_is_nccl_tests_and_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "nccl.json"
    file.write_text("mine")
    arguments = "all_reduce,all_to_all_v --ranks 2 -b 1K -e 2K -f 2 -n 7 -w 3".split()
    ended = run(*arguments, "-J", str(file), env={"ISTHMUS_JOB_KEY": "0123456789abcdef" * 2})
    assert file.read_text() == "mine" and f"# Writing JSON output to {file}.0\n" in ended.stdout
    written: dict[str, Any] = json.loads(file.with_name("nccl.json.0").read_text())
    assert {"version", "start_time", "args", "env", "nccl_version", "config", "results", "end_time"} <= written.keys()
    assert not any("0123456789abcdef" in entry for entry in written["env"]), "the job key is a secret"
    config = written["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"], config["step_factor"]) == (1024, 2048, 2)
    assert (config["warmup_iters"], config["iterations"], config["aggregated_iterations"]) == (3, 7, 1)
    assert [device["rank"] for device in config["devices"]] == [0, 1]
    names = [(row["experiment_name"], row["size"], row["count"]) for row in written["results"]]
    assert names[:2] == [("all_reduce", 1024, 256), ("all_reduce", 2048, 512)]
    assert [name for name, _, _ in names[2:]] == ["all_to_all_v"] * 2
    for row in written["results"]:
        assert row["type"] == "float" and row["root"] == "-1" and row["actual_iterations"] == 7
        assert row["out_of_place"].keys() == {"time", "alg_bw", "bus_bw", "nwrong"}
        assert row["out_of_place"]["nwrong"] == 0 and row["out_of_place"]["time"] > 0
        assert (row["in_place"] is None) == (row["experiment_name"] == "all_to_all_v")
    assert written["out_of_bounds"] == {"count": 0, "okay": "true"}


def test_the_memory_rate_alone_needs_only_a_footprint() -> None:
    found = json.loads(run("--limit", "--ranks", "2", "-e", "1M").stdout)
    assert (found["ranks"], found["footprint_bytes_per_rank"]) == (2, 1 << 20)
    assert min(found[kernel] for kernel in ("add", "copy", "add_streaming")) > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_ranks_started_here_have_a_processor_each_unless_they_are_to_move() -> None:
    said = "each on its own processor"
    few = ("barrier", "-n", "20")
    assert said in run(*few, "--ranks", "2").stdout
    assert said not in run(*few, "--ranks", "2", "--no-bind").stdout
    assert said not in run(*few, "--ranks", str(len(os.sched_getaffinity(0)) + 1)).stdout


def test_the_limit_tells_what_passes_from_core_to_core_where_there_are_two_ranks() -> None:
    pair = json.loads(run("--limit", "--ranks", "3", "-e", "64K").stdout)
    assert pair["handover_per_rank"] > 0
    assert 0 < pair["latency_ns"] <= pair["slowest_latency_ns"]
    assert not {"handover_per_rank", "latency_ns"} & json.loads(run("--limit", "--ranks", "1", "-e", "64K").stdout).keys()


def test_a_raw_exchange_tells_its_ten_variants() -> None:
    found = json.loads(run(*"--raw-tcp -b 64 -e 1M -n 2".split()).stdout)
    assert (found["bytes"], found["rounds"], found["ping_pong_bytes"], len(found["variants"])) == (1 << 20, 2, 64, 10)
    fastest = min(variant["seconds"] for variant in found["variants"])
    assert found["best_rate_bytes_per_s_each_way"] == pytest.approx(found["bytes"] / fastest)
    assert min(found["round_trip_s"].values()) > 0


# ---- wrong flags


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("all_reduce --rankz 2", "--rankz"),
        ("all_redoose --ranks 2", "all_redoose"),
        ("--ranks 2", "collective"),
        ("all_reduce --ranks 2 -b 8 -e 4", "-b"),
        ("all_reduce --ranks 2 -b many", "many"),
        ("all_reduce --ranks 2 -b 8 -e 16 -f 1", "-f"),
        ("all_reduce --ranks 2 -d florp", "florp"),
        ("all_reduce --ranks 2 -o summ", "summ"),
        ("all_reduce --ranks 2 -o band", "-o band"),
        ("all_reduce --ranks 2 -n 0", "--iters"),
        ("all_reduce -g 2", "-g 2"),
        ("all_reduce --ranks 0", "--ranks"),
        ("all_reduce --ranks 3 --islands a:1,b:1", "--islands"),
        ("all_reduce --ranks 2 --islands a:x,b:1", "--islands"),
        ("all_reduce --ranks 2 --bridge pigeon", "--bridge"),
        ("all_reduce --ranks 3 -t 2", "-t"),
        ("all_reduce --ranks 2 --threads --steady", "--steady"),
        ("reduce --ranks 2 -b 8 -e 8 -r x", "-r x"),
        ("reduce --ranks 2 -b 8 -e 8 -r 1x", "-r 1x"),
        ("reduce --ranks 2 -b 8 -e 8 -r -5", "-r -5"),
        ("reduce --ranks 2 -b 8 -e 8 -r 2", "-r 2"),
    ],
)
def test_a_wrong_flag_ends_with_2_and_is_named(arguments: str, named: str) -> None:
    ended = run(*arguments.split(), status=2)
    said = ended.stdout + ended.stderr
    assert named in said.replace("Run with --help for more information.", ""), said
    assert not table(ended.stdout), "something ran"


def refused(arguments: str) -> str:
    """The one line that says why."""
    ended = run(*arguments.split(), status=2)
    return ended.stderr.replace("Run with --help for more information.", "").strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("all_redoose", "unknown collective 'all_redoose', did you mean all_reduce? Known: all_reduce reduce"),
        ("alltoal", "did you mean all_to_all?"),
        ("florp", "unknown collective 'florp'. Known: "),
        ("hypercube_perf", "unknown collective 'hypercube_perf'. Known: "),
        ("all_reduce -d bfloat61", "did you mean bfloat16?"),
        ("all_reduce -o summ", "did you mean sum?"),
        ("all_reduce --rankz 2", "not expected: --rankz 2, did you mean --ranks?"),
        ("all_reduce --ranks 2 foo bar --zorb 1", "not expected: foo bar --zorb 1."),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_and_in_the_order_given(arguments: str, said: str) -> None:
    text = refused(arguments)
    assert said in text, text
    assert said.endswith("1.") == text.endswith("1."), text


# What nccl-tests' own parser takes, with values that have a meaning there.
FOREIGN = (
    "-y 1", "-G 2", "-C 1", "-S 1", "-R 1", "-R 2", "-x 1", "-D 2", "-V 8", "-M 1", "-F rows.csv", "--stream_null 1",
    "--cudagraph 2", "--report_cputime 1", "--report_timestamps 1", "--local_register 1", "--cta_policy 2",
    "--device_implementation 1", "--device_cta_count 16", "--memory 1",
)  # fmt: skip


@pytest.mark.parametrize("flag", FOREIGN)
def test_a_flag_of_nccl_tests_that_is_about_gpus_is_answered_with_what_to_do(flag: str) -> None:
    text = refused(f"all_reduce --ranks 2 {flag}")
    assert flag.split()[1] in text and ("out" in text or "use -J" in text), text
    assert "not expected" not in text


@pytest.mark.parametrize(
    ("flags", "ranks"), [("-g 2", 2), ("-g 8", 8), ("-t 2 -g 4", 8), ("--ngpus 2", 2), ("-g 2 --ranks 2", 2)]
)
def test_several_gpus_a_thread_are_answered_with_as_many_ranks(flags: str, ranks: int) -> None:
    text = refused(f"all_reduce -b 8 -e 1M -f 8 {flags}")
    assert f"use --ranks {ranks} for as many processes, or -t {ranks} for threads of one process" in text, text


def test_every_other_flag_of_nccl_tests_is_taken(tmp_path: Path) -> None:
    short = f"-t 2 -g 1 -b 8 -e 64 -i 56 -n 2 -w 1 -m 2 -p 1 -c 1 -o sum -d float -r 0 -z 0 -a 1 -T 60 -J {tmp_path / 'a'}"
    neutral = "-y 0 -G 0 -C 0 -S 0 -R 0 -x 0 -D 0 -M 0 -N 1"
    (rows,) = table(run("all_reduce", *short.split(), *neutral.split()).stdout).values()
    assert [row.size for row in rows] == [8, 64]
    long = (
        f"--nthreads 2 --ngpus 1 --minbytes 8 --maxbytes 64 --stepfactor 8 --iters 2 --warmup_iters 1 --agg_iters 1 "
        f"--run_cycles 1 --parallel_init 0 --check 1 --op sum --datatype float --root 0 --blocking 0 --average 1 "
        f"--timeout 60 --output_file {tmp_path / 'b'}"
    )
    (rows,) = table(run("all_reduce", *long.split()).stdout).values()
    assert [row.size for row in rows] == [8, 64]


def test_threads_alone_are_as_many_ranks_of_one_process() -> None:
    ended = run(*"all_reduce -t 4 -b 8 -e 8 -n 2".split())
    assert "# 4 ranks, " in ended.stdout and "as threads" in ended.stdout


def test_cycles_run_and_print_all_rows_again(tmp_path: Path) -> None:
    ended = run(*"all_reduce,barrier --ranks 2 -b 8 -e 16 -f 2 -n 2 -N 3".split(), "--json", str(tmp_path / "all"))
    sizes = [int(line.split()[0]) for line in ended.stdout.splitlines() if not line.startswith("#")]
    assert sizes == [8, 16, 0] * 3 or sizes == [8, 16, 8] * 3
    written = json.loads((tmp_path / "all").read_text())
    assert [row["collective"] for row in written["rows"]] == ["all_reduce", "all_reduce", "barrier"] * 3


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("all_reduce_perf", "all_reduce_perf is nccl-tests' name; here it is all_reduce"),
        ("alltoall_perf", "alltoall_perf is nccl-tests' name; here it is all_to_all"),
        ("allreduce", "allreduce is all_reduce here"),
        ("AllGatherV", "AllGatherV is all_gather_v here"),
        ("bcast", "bcast is broadcast here"),
        ("send_recv", "send_recv is sendrecv here"),
    ],
)
def test_another_way_to_write_a_collective_is_taken_with_a_hint(written: str, hint: str) -> None:
    ended = run(written, *"--ranks 2 -b 8 -e 8 -n 2".split())
    assert list(table(ended.stdout)) == [hint.removesuffix(" here").split()[-1]]
    assert ended.stderr == f"isthmus-bench: {hint}\n", "once, whatever the ranks are"


def test_an_own_name_has_no_hint() -> None:
    assert run(*"all_reduce --ranks 2 -b 8 -e 8 -n 2".split()).stderr == ""


# ---- launchers


def mpirun() -> str:
    folder = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([folder, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip("no mpirun on this machine")
    return found


def check_joined(output: str, how: str) -> None:
    """One table, of two ranks in two processes: rank 0 speaks, and nobody started further ranks."""
    assert f"# 2 ranks, started by {how}; host memory" in output, output
    assert len(set(re.findall(r"^#  Rank +\d+ Group +0 Pid +(\d+)", output, re.M))) == 2
    (rows,) = table(output).values()
    assert [row.size for row in rows] == [8, 1024]
    assert all(side.wrong == 0 for row in rows for side in row.sides)


def test_it_joins_mpirun() -> None:
    ended = run(
        *"all_reduce -b 8 -e 1K -f 128 -n 3".split(),
        launcher=[mpirun(), "--allow-run-as-root", "--oversubscribe", "-n", "2"],
        env={"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"},
    )
    check_joined(ended.stdout, "mpirun")


def test_it_joins_torchrun() -> None:
    pytest.importorskip("torch")
    place = f"--master-addr 127.0.0.1 --master-port {launch.free_port()}"
    ended = run(
        *"all_reduce -b 8 -e 1K -f 128 -n 3".split(),
        launcher=[sys.executable, *f"-m torch.distributed.run {place} --nproc-per-node 2 --no-python".split()],
        env={"OMP_NUM_THREADS": "1"},
    )
    check_joined(ended.stdout, "torchrun")


# ---- the steady state

STEADY = re.compile(
    r"# steady (\w+) +(\d+) B: (\d+) iterations, all ranks: (\d+) system calls but futex and sched_yield.*?, "
    r"(\d+) allocations, \d+ by other threads: (OK|FAILED)"
)


def test_the_steady_state_allocates_nothing_and_makes_no_system_call_but_to_wait() -> None:
    """Shows, for every collective in shared memory, of one hop and of many chunks: after a hundred calls, three hundred more
    make no heap allocation on the calling threads of any rank and no system call but futex and sched_yield, which only wait.
    """
    left = list(COLLECTIVES)
    for turn in range(3):
        status = None if turn < 2 else 0  # a pool may grow once more when ranks first meet in another order: then again
        ended = run(*f"{','.join(left)} --steady --ranks 2 -b 8 -e 256K -f 32768 -n 300".split(), status=status)
        found = STEADY.findall(ended.stdout)
        expected = [name for name in left for _ in range(1 + (name != "barrier"))]  # barrier has one row
        assert [name for name, *_ in found] == expected and len(ended.stdout.splitlines()) == len(expected), ended.stdout
        left = sorted({name for name, _, *rest in found if tuple(rest) != ("300", "0", "0", "OK")}, key=COLLECTIVES.index)
        assert (ended.returncode == 0) == (not left), ended.stdout
        if not left:
            return
    pytest.fail(ended.stdout)


def test_the_steady_state_is_really_counted() -> None:
    """The counters of the test above are not always 0: over TCP the calling threads send and receive."""
    ended = run(*"all_reduce --steady --ranks 2 --islands a:1,b:1 --bridge tcp -b 8 -e 8 -n 30".split(), status=1)
    ((name, size, iterations, calls, _, outcome),) = STEADY.findall(ended.stdout)
    assert (name, size, iterations, outcome) == ("all_reduce", "8", "30", "FAILED") and int(calls) >= 30


# ---- two builds


def test_two_builds_are_compared_shape_by_shape_and_round_by_round(tmp_path: Path) -> None:
    out = tmp_path / "builds.json"
    script = Path(__file__).resolve().parents[2] / "bench" / "builds.py"
    command = [sys.executable, str(script), program(), program(), "--rounds", "2", "--sizes", "8,8K", "--out", str(out)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=patient(280), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    kinds = {(row["shape"], row["collective"], row["bytes"]) for row in found["rows"]}
    assert len(kinds) == len(found["rows"]) == 3 * 3 * 2
    for row in found["rows"]:
        assert 0 < row["least"] <= row["ratio"] <= row["most"]
        assert row["old_us"] > 0
    assert ended.stdout.count(" to ") >= len(kinds)
    assert "geometric mean" in ended.stdout


def test_carriers_are_compared_by_turns_beside_a_raw_exchange(tmp_path: Path) -> None:
    out = tmp_path / "carriers.json"
    script = Path(__file__).resolve().parents[2] / "bench" / "carriers.py"
    command = [sys.executable, str(script), "--bench", program(), "--rounds", "2", "--sizes", "8,256K", "--out", str(out)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=patient(280), check=False)
    if "libucp" in ended.stderr:
        pytest.skip("libucp.so.0 is not on this machine (Debian: libucx0)")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 3 * 2 and list(found["raw_tcp"]) == ["262144"]
    for row in found["rows"]:
        for carrier in ("tcp", "ucx, its tcp", "ucx, its shared memory", "shared memory"):
            assert 0 < row[carrier]["least"] <= row[carrier]["us"] <= row[carrier]["most"]


def test_a_build_that_fails_ends_the_comparison_with_what_it_said() -> None:
    script = Path(__file__).resolve().parents[2] / "bench" / "builds.py"
    command = [sys.executable, str(script), "/bin/false", program()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(280), check=False)
    assert ended.returncode == 1
    assert "/bin/false all_reduce" in ended.stderr


def test_over_loopback_the_kernel_copies_what_was_sent_with_msg_zerocopy_and_the_benchmark_says_so(tmp_path: Path) -> None:
    out = tmp_path / "zerocopy.json"
    script = Path(__file__).resolve().parents[2] / "bench" / "zerocopy.py"
    command = [sys.executable, str(script), "--mib", "8", "--piece", "32", "--rounds", "2", "--output", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(280), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads(out.read_text())["rows"]
    assert rows["plain"]["copied"] is None
    assert rows["zerocopy"]["copied"] == 1
    for row in rows.values():
        assert 0 < row["gbps"][0] <= row["gbps"][1] <= row["gbps"][2]
    assert "over loopback" in ended.stdout and "100% of the sends copied by the kernel" in ended.stdout
