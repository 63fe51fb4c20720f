"""How ranks find each other, and what they are told when they do not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch
from patience import SOON, patient
from ranks import DEADLINE

Run = Callable[..., list[Any]]

PROGRAM = """
import array, isthmus
with isthmus.init() as comm:
    x = array.array("i", [comm.rank])
    comm.all_reduce(x)
    print(f"rank {comm.rank} of {comm.size}: {x[0]}", flush=True)
"""


def begin(own: dict[str, str], program: str = PROGRAM) -> subprocess.Popen[str]:
    """Starts the program with these variables, and nothing of another launcher around."""
    clean = launch.environment(0, 1, 1)
    for name in list(clean):
        if name.startswith("ISTHMUS_") or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        ):
            del clean[name]
    clean["ISTHMUS_TIMEOUT"] = str(DEADLINE)
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env={**clean, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen[str]], timeout: float = 2 * DEADLINE) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each."""
    try:
        texts = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def join(variables: list[dict[str, str]], program: str = PROGRAM) -> list[tuple[int, str, str]]:
    """Runs the program once for each set of variables."""
    return finish([begin(own, program) for own in variables])


def joined(variables: list[dict[str, str]]) -> None:
    results = join(variables)
    assert [code for code, _, _ in results] == [0] * len(variables), results
    total = sum(range(len(variables)))
    assert [out.strip() for _, out, _ in results] == [
        f"rank {r} of {len(variables)}: {total}" for r in range(len(variables))
    ]


def test_torchruns_variables_are_enough() -> None:
    port = str(launch.free_port())
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "job-7"}
    joined([{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "0"} for rank in range(2)])


def test_mpiruns_variables_and_an_address_are_enough() -> None:
    address = f"127.0.0.1:{launch.free_port()}"
    shared = {"OMPI_COMM_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address}
    joined([{**shared, "OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(2)])


def test_sruns_variables_are_enough() -> None:
    address = f"127.0.0.1:{launch.free_port()}"
    shared = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "ISTHMUS_ADDRESS": address}
    joined([{**shared, "SLURM_PROCID": str(rank)} for rank in range(2)])


def test_isthmus_own_variables_are_enough() -> None:
    address = f"127.0.0.1:{launch.free_port()}"
    joined([{"ISTHMUS_RANK": str(rank), "ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address} for rank in range(2)])


def test_arguments_are_enough(processes: Run) -> None:
    def body(port: int) -> int:
        rank = int(os.environ.pop("ISTHMUS_RANK"))
        for name in ("ISTHMUS_WORLD_SIZE", "ISTHMUS_ADDRESS", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name)
        with isthmus.init(rank, 2, f"127.0.0.1:{port}", name="by hand") as comm:
            assert comm.name == "by hand"
            return int(comm.all_reduce(np.array([rank + 1]))[0])

    assert processes(2, body, launch.free_port(), init=False, fresh=True) == [3, 3]


def test_a_unique_id_takes_the_place_of_an_address(threads: Run) -> None:
    assert len(isthmus.unique_id()) == 128
    assert threads(2, lambda comm: (comm.rank, comm.size)) == [(0, 2), (1, 2)]


def test_mpi4py_carries_the_rendezvous() -> None:
    pytest.importorskip("mpi4py")
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if mpirun is None:
        pytest.skip("no mpirun on this machine")
    program = (
        "import isthmus, array\n"
        "from mpi4py import MPI\n"
        "for comm in (isthmus.from_mpi(MPI.COMM_WORLD), isthmus.init()):\n"  # init finds mpirun without an address
        "    x = array.array('i', [comm.rank + 1]); comm.all_reduce(x); assert x[0] == 3; comm.destroy()\n"
        "print('joined')\n"
    )
    env = launch.environment(0, 1, 1)
    for name in list(env):
        if name.startswith("ISTHMUS_") or name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del env[name]
    command = [mpirun, "--oversubscribe", "-n", "2", sys.executable, "-c", program]
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient(240), check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("joined") == 2


def test_an_exception_in_the_exchange_is_raised_as_it_is() -> None:
    class Broken:
        def Get_rank(self) -> int:  # noqa: N802 - mpi4py's names
            return 0

        def Get_size(self) -> int:  # noqa: N802
            return 2

        def Allgather(self, _mine: Any, _all: Any) -> None:  # noqa: N802
            raise OSError("the network is down")

    with pytest.raises(OSError, match="the network is down"):
        isthmus.from_mpi(Broken(), timeout=5)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((0,), {}, "rank= and world_size= go together"),
        ((2, 2), {}, "rank=2 is not in 0 to 1"),
        ((-1, 2), {}, "rank=-1 is not in 0 to 1"),
        ((0, 0), {}, "world_size=0 must be 1 or more"),
        ((0, 1, "localhost:1"), {"unique_id": b"x" * 128}, "not both"),
        ((0, 2), {"unique_id": b"short"}, "unique_id has 5 bytes"),
        ((0, 1), {"unique_id": b"x" * 128, "timeout": -1}, "timeout=-1 must be more than 0"),
    ],
)
def test_wrong_ranks_and_rendezvous_are_refused(arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(isthmus.ArgumentError, match=text):
        isthmus.init(*arguments, **options)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"EAGER_BITES": 1}, "EAGER_BITES.*did you mean ISTHMUS_EAGER_BYTES"),
        ({"eager_bites": 1}, "eager_bites.*did you mean ISTHMUS_EAGER_BYTES"),
        ({"EAGER_BYTES": "-1"}, "ISTHMUS_EAGER_BYTES=-1.*0 to 65536"),
        ({"BRIDGE": "pigeon"}, r"pigeon.*auto\|shm\|tcp"),
        ("EAGER_BYTES", "not NAME=value"),
        ({"A;B": 1}, "must not hold ';'"),
    ],
)
def test_a_bad_setting_is_named_with_its_range(settings: Any, text: str) -> None:
    with pytest.raises(isthmus.ConfigError, match=text):
        isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings=settings)


def test_a_bad_environment_is_named() -> None:
    ((code, _, error),) = join([{"ISTHMUS_RANK": "0", "ISTHMUS_WORLD_SIZE": "1", "ISTHMUS_EAGER_BYTES": "lots"}])
    assert code != 0 and "ConfigError" in error and "ISTHMUS_EAGER_BYTES=lots" in error


def test_ranks_with_unlike_job_keys_are_told_so_first_of_all() -> None:
    address = f"127.0.0.1:{launch.free_port()}"
    shared = {"ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address}
    zero = begin({**shared, "ISTHMUS_RANK": "0", "ISTHMUS_JOB_KEY": "0" * 32, "ISTHMUS_TIMEOUT": str(2 * SOON)})
    try:  # rank 1 does not wait for its deadline; rank 0 does, since nothing proves that it was a rank of the job
        ((code, _, error),) = join([{**shared, "ISTHMUS_RANK": "1", "ISTHMUS_JOB_KEY": "1" * 32}])
        assert zero.poll() is None
    finally:
        zero.kill()
        zero.communicate()
    last = error.rstrip().splitlines()[-1]
    assert code == 1 and last.startswith(
        f"isthmus._errors.AuthError: rank 1: rank 0 at {address} has another ISTHMUS_JOB_KEY than this rank;"
    ), error


def test_settings_that_differ_are_named_alone_in_one_line_at_once() -> None:
    address = f"127.0.0.1:{launch.free_port()}"
    shared = {"ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address, "ISTHMUS_TIMEOUT": str(2 * DEADLINE)}
    ended = join([{**shared, "ISTHMUS_RANK": str(rank), "ISTHMUS_TCP_STREAMS": str(rank + 1)} for rank in range(2)])
    for code, _, error in ended:
        last = error.rstrip().splitlines()[-1]
        assert code == 1 and last.startswith(
            "isthmus._errors.MismatchError: settings that must be equal on all ranks differ: ISTHMUS_TCP_STREAMS"
        ), error


def test_no_launcher_at_all_is_told_what_to_do() -> None:
    ((code, _, error),) = join([{}])
    assert code != 0 and "isthmus._errors." in error and "torchrun" in error


def test_a_missing_rank_is_named_at_the_deadline() -> None:
    begin = time.monotonic()
    with pytest.raises(isthmus.TimeoutError, match=r"^rank 1 and rank 2 of 3 did not arrive within 1 s"):
        isthmus.init(0, 3, f"127.0.0.1:{launch.free_port()}", timeout=1.0)
    assert 0.9 < time.monotonic() - begin < 1 + SOON


def test_two_ranks_with_one_number_are_told(processes: Run) -> None:
    def body(address: str) -> str:
        with pytest.raises(isthmus.Error) as caught:
            isthmus.init(0 if int(os.environ["ISTHMUS_RANK"]) < 1 else 1, 3, address, timeout=DEADLINE)
        return str(caught.value)

    texts = processes(3, body, f"127.0.0.1:{launch.free_port()}", init=False)
    assert any("rank 1" in text for text in texts)


def test_settings_that_change_plans_must_agree(processes: Run) -> None:
    def body(address: str) -> str:
        rank = int(os.environ["ISTHMUS_RANK"])
        with pytest.raises(isthmus.MismatchError) as caught:
            isthmus.init(rank, 2, address, settings={"CHUNK_BYTES": 65536 << rank}, timeout=DEADLINE)
        return str(caught.value)

    for text in processes(2, body, f"127.0.0.1:{launch.free_port()}", init=False):
        assert "ISTHMUS_CHUNK_BYTES is 65536 on rank 0 and 131072 on rank 1" in text
        assert text.count("ISTHMUS_") == 1, text  # those that are equal are not in the way


def connect(port: int, seconds: float = SOON) -> socket.socket:
    """A connection to the port, as soon as somebody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), seconds)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens at port {port}"
            time.sleep(0.01)


def test_a_setting_of_the_process_is_the_first_communicators() -> None:
    with isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings={"SPIN_US": 70}):
        with pytest.raises(isthmus.ConfigError, match="ISTHMUS_SPIN_US=80: this process has used 70"):
            isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings={"SPIN_US": 80})
        isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings={"SPIN_US": 70}).destroy()


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        ("a:2,c:1", "no island is named 'c'; there is 'a'"),
        ("a:0", "a rate above 0"),
        ("a", "is not island:rate"),
        ("a:nan", "rate above 0"),
    ],
)
def test_bad_rates_of_bridges_are_named(rates: str, text: str) -> None:
    with pytest.raises(isthmus.ConfigError, match=text):
        isthmus.init(0, 1, unique_id=isthmus.unique_id(), island="a", settings={"BRIDGE_RATES": rates})


def test_rates_of_bridges_stand_in_the_topology_also_of_a_part(processes: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
        comm.broadcast(unique_id)
        more: dict[str, Any] = {"island": "ab"[comm.rank], "bridge": "tcp", "settings": {"BRIDGE_RATES": "a:3,b:1"}}
        with isthmus.init(comm.rank, comm.size, unique_id=bytes(unique_id), **more) as both:
            with both.split(comm.rank) as alone:
                return [group["weight"] for one in (both, alone) for group in one.topology()["groups"]]

    assert processes(2, body) == [[3, 1, 3], [3, 1, 1]]


def test_a_foreign_client_on_the_port_is_logged_and_harms_nobody() -> None:
    port = launch.free_port()
    shared = {"ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": f"127.0.0.1:{port}"}
    ranks = [begin({**shared, "ISTHMUS_RANK": "0"})]
    try:
        with connect(port) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # it is shown out before rank 1 exists
            address = ":".join(map(str, stranger.getsockname()))
        ranks.append(begin({**shared, "ISTHMUS_RANK": "1"}))
    finally:
        results = finish(ranks)
    assert [(code, out) for code, out, _ in results] == [(0, "rank 0 of 2: 1\n"), (0, "rank 1 of 2: 1\n")], results
    assert f"warning] refused a client: {address}: it does not speak our protocol" in results[0][2], results
    assert results[1][2] == ""


def test_settings_are_listed_with_everything_about_them() -> None:
    rows = {row["name"]: row for row in isthmus.settings()}
    assert {"ISTHMUS_TIMEOUT", "ISTHMUS_EAGER_BYTES", "ISTHMUS_ISLAND", "ISTHMUS_BRIDGE"} <= rows.keys()
    assert all(row["meaning"] and "range" in row and "value" in row for row in rows.values())


def test_context_stats_count_communicators() -> None:
    before = isthmus.context_stats().get("communicators", 0)  # a process that has none yet has no context either
    with isthmus.init(0, 1, unique_id=isthmus.unique_id()):
        during = isthmus.context_stats()
    assert during["communicators"] == before + 1
    assert isthmus.context_stats().get("communicators", 0) == before


OUT_OF_MEMORY = """
import os, isthmus
alone = []
try:
    while os.environ["ISTHMUS_RANK"] == "1" and len(alone) < 50_000:
        alone.append(isthmus.init(rank=0, world_size=1, settings={"EAGER_BYTES": "64K"}))
except isthmus.ResourceError:
    pass
print(len(alone) > 0)
isthmus.init(settings={"EAGER_BYTES": "64K"})
"""


def test_a_rank_without_memory_left_is_named_on_every_rank() -> None:
    port = launch.free_port()
    shared = {"ISTHMUS_WORLD_SIZE": "3", "ISTHMUS_ADDRESS": f"127.0.0.1:{port}"}
    results = finish([begin({**shared, "ISTHMUS_RANK": str(r)}, OUT_OF_MEMORY) for r in range(3)])
    assert [out.strip() for _, out, _ in results] == ["False", "True", "False"]
    for code, _, err in results:
        assert code != 0
        assert "on rank 1: " in err and "are in use; destroy communicators or raise the limit" in err, err
