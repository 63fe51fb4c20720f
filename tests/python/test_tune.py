"""`isthmus tune`, the profile that it writes, and what ranks make of it. Rates in profiles written here are made up."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import OnDevice, on_host, run_fleet
from isthmus.cli import tune
from profiles import HOST, command, host_rates, on_islands, written
from ranks import DEADLINE

Run = Callable[..., list[Any]]


def check(profile: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What every profile must hold; its entries by name."""
    assert profile["schema"] == 1 and profile["isthmus"] == isthmus.__version__ and profile["host"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", profile["date"])
    for entry in profile["entries"]:
        assert entry["unit"] == "bytes/s" and entry["repetitions"] >= 5
        assert 0 < entry["min"] <= entry["median"] <= entry["max"]
    entries = {entry["name"]: entry for entry in profile["entries"]}
    assert len(entries) == len(profile["entries"]) and set(HOST) <= entries.keys()
    return entries


def test_tune_measures_this_host_and_writes_a_profile_that_ranks_take(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    ended = command("tune", "--seconds", "0.1", "--output", str(output))
    assert ended.returncode == 0, ended.stderr
    profile = json.loads(output.read_text())
    entries = check(profile)
    assert profile["simulated"] is False and "SIMULATED" not in ended.stdout
    assert "loopback" in entries["tcp_loopback"]["note"]
    for name in HOST:
        assert re.search(rf"^{name} +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+ ", ended.stdout, re.MULTILINE), ended.stdout
    for vendor in ("cuda", "hip", "acl"):  # a device is measured, or it is said why not
        known = [name for name in entries if name.startswith(f"{vendor}:")]
        assert known or any(one["name"].startswith(vendor) and one["text"] for one in profile["missing"])
    assert list(tmp_path.iterdir()) == [output]
    with isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings={"PROFILE": output}) as comm:
        assert comm.topology()["ranks"][0]["bridge_rate"] == entries["shm_exchange"]["median"]


def test_tune_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    for seconds in ("0", "-1", "nan", "soon"):
        assert command("tune", "--seconds", seconds).returncode == 2
    ended = command("tune", "--seconds", "0.05", "--output", str(tmp_path / "nowhere" / "profile"))
    assert ended.returncode == 1 and "cannot be written" in ended.stderr and "Traceback" not in ended.stderr
    ended = command("tune", "--seconds", "0.05", "--output", str(tmp_path / "p"), env={"ISTHMUS_DEVICE": "abacus:0"})
    assert ended.returncode == 1 and "ISTHMUS_DEVICE=abacus:0" in ended.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fleet", "device", "library"),
    [("nvidia:1", "cuda:0", "nccl"), ("amd:1", "hip:0", "rccl"), ("ascend:1", "acl:0", "hccl")],
)
def test_tune_measures_a_rehearsed_device_and_says_that_it_is_one(
    tmp_path: Path, fleet: str, device: str, library: str
) -> None:
    output = tmp_path / "profile.json"
    tune = [sys.executable, "-m", "isthmus", "tune", "--seconds", "0.05", "--output", str(output)]
    ended = command("rehearse", "--fleet", fleet, "--set", "QUIET=1", "--", *tune)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "SIMULATED" in ended.stdout
    assert all(line.startswith("[rehearsal 0 ") for line in ended.stdout.splitlines())
    profile = json.loads(output.read_text())
    entries = check(profile)
    assert profile["simulated"] is True and profile["rehearsal"] == fleet and profile["missing"] == []
    ways = {f"{device}/{way}" for way in ("device_to_host", "host_to_device", "both_ways")}
    assert ways | {f"{library}/all_reduce"} == entries.keys() - set(HOST)
    assert "1 rank" in entries[f"{library}/all_reduce"]["note"]

    def body(comm: isthmus.Comm) -> tuple[float, str, Any]:
        plan = comm.explain("all_reduce", nbytes=1 << 20)
        return comm.topology()["ranks"][0]["bridge_rate"], str(plan), plan.data["predicted"]

    [(rate, text, predicted)] = run_fleet(fleet, body, env={"ISTHMUS_PROFILE": str(output)})
    assert rate == min(entries[name]["median"] for name in (*(ways - {f"{device}/both_ways"}), "shm_exchange"))
    assert predicted["simulated"] is True and "a rehearsal" in text


def test_tune_measures_every_device_of_a_vendor_and_its_library_across_them(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    tune = ["env", "ISTHMUS_DEVICE=cuda", sys.executable, "-m", "isthmus", "tune", "--seconds", "0.05"]
    switches = ("--set", "QUIET=1", "--set", "DEVICES=2")
    ended = command("rehearse", "--fleet", "nvidia:1", *switches, "--", *tune, "--output", str(output))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    entries = check(json.loads(output.read_text()))
    assert {"cuda:0/device_to_host", "cuda:1/host_to_device", "cuda:1/both_ways"} <= entries.keys()
    assert "2 ranks" in entries["nccl/all_reduce"]["note"]


def test_tune_says_what_a_device_refused(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    tune = [sys.executable, "-m", "isthmus", "tune", "--seconds", "0.05", "--output", str(output)]
    switches = ("--set", "QUIET=1", "--set", "FAIL=cuMemcpyAsync:9:700")
    ended = command("rehearse", "--fleet", "nvidia:1", *switches, "--", *tune)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    profile = json.loads(output.read_text())
    assert set(HOST) <= check(profile).keys() and not any("both_ways" in entry["name"] for entry in profile["entries"])
    assert [one["name"] for one in profile["missing"]] == ["cuda:0"] and "700" in profile["missing"][0]["text"]
    assert "not measured cuda:0" in ended.stdout


def test_a_place_where_no_file_can_be_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "profile.json"):
        ended = command("tune", "--output", str(place))
        assert ended.returncode != 0 and "is a folder, or in none" in ended.stderr and not ended.stdout, ended


def weights_shares_and_bits(comm: isthmus.Comm) -> tuple[list[float], list[float], bytes, str]:
    x = (np.random.default_rng(comm.rank).standard_normal(300_007)).astype(np.float32)
    plan = comm.explain("all_reduce", nbytes=x.nbytes).data
    comm.all_reduce(x)
    weights = [group["weight"] for group in comm.topology()["groups"]]
    return weights, plan["bridge"]["shares"], x.tobytes(), plan["digest"]


def test_unequal_rates_give_unequal_domains_and_the_same_bits(ranks: Run, tmp_path: Path) -> None:
    rates = (2e9, 1.1e9, 1.2e9, 2.5e9)
    profiles = [written(tmp_path / f"{rank}", host_rates(rate)) for rank, rate in enumerate(rates)]

    def body(comm: isthmus.Comm) -> Any:
        measured = on_islands(comm, weights_shares_and_bits, "abbc", PROFILE=profiles)
        plain = on_islands(comm, weights_shares_and_bits, "abbc")
        return measured, plain

    results = ranks(4, body)
    for (weights, shares, bits, digest), (equal, even, plain, other) in results:
        assert weights == [1, 1.1, 1.25] and equal == [1, 1, 1]
        assert even == pytest.approx([1 / 3] * 3) and shares[0] < shares[1] < shares[2] and sum(shares) == pytest.approx(1)
        assert bits == plain == results[0][0][2], "the order of a sum does not depend on who owns it"
        assert digest == results[0][0][3] != other


def test_declared_rates_go_before_measured_ones_and_parts_keep_the_profile(processes: Run, tmp_path: Path) -> None:
    profiles = [written(tmp_path / f"{rank}", host_rates(1e9 * (rank + 1))) for rank in range(3)]

    def weights(comm: isthmus.Comm) -> list[float]:
        return [group["weight"] for group in comm.topology()["groups"]]

    def parts(comm: isthmus.Comm) -> tuple[list[float], Any]:
        comm.barrier()
        Path(profiles[comm.rank]).unlink()  # read at init, and not again
        comm.barrier()
        part = comm.split(0 if comm.rank > 0 else -1)
        if part is None:
            return weights(comm), None
        with part:
            return weights(comm), weights(part)

    def declared(comm: isthmus.Comm) -> tuple[list[float], Any]:
        part = comm.split(0 if comm.rank != 1 else -1)  # without the island that was named
        if part is None:
            return weights(comm), None
        with part:
            return weights(comm), weights(part)

    def body(comm: isthmus.Comm) -> Any:
        first = on_islands(comm, declared, "abc", PROFILE=profiles, BRIDGE_RATES="b:5")
        return first, on_islands(comm, parts, "abc", PROFILE=profiles)

    results = processes(3, body)
    assert [first for first, _ in results] == [([1, 5, 1], [1, 1]), ([1, 5, 1], None), ([1, 5, 1], [1, 1])]
    assert [second for _, second in results] == [([1, 2, 3], None), ([1, 2, 3], [1, 1.5]), ([1, 2, 3], [1, 1.5])]


def test_ranks_on_devices_and_on_the_host_share_a_message_by_their_profile(tmp_path: Path) -> None:
    device = {"cuda:0/device_to_host": 1e9, "cuda:0/host_to_device": 2e9}
    profile = written(tmp_path / "profile", {**host_rates(3e9), **device}, simulated=True)

    def body(comm: isthmus.Comm) -> Any:
        x = np.full(1_000_003, comm.rank + 1, np.float32)
        (comm if on_host() else OnDevice(comm)).all_reduce(x)
        weights = [group["weight"] for group in comm.topology()["groups"]]
        plan = comm.explain("all_reduce", nbytes=x.nbytes).data
        return weights, bool((x == 6).all()), plan["predicted"]["device"] > 0, plan["last"]["seconds"] > 0

    results = run_fleet("nvidia:2@a,cpu:1@b", body, bridge="tcp", env={"ISTHMUS_PROFILE": profile})
    assert results == [([1, 1.5], True, True, True)] * 2 + [([1, 1.5], True, False, True)]


@pytest.mark.parametrize(("fleet", "least"), [("nvidia:2@a,amd:2@b", 256), ("nvidia:1@a,amd:1@b", 128)])
def test_chunks_of_devices_are_as_short_as_a_slow_bridge_allows_and_right(tmp_path: Path, fleet: str, least: int) -> None:
    """Of 4 MiB. What a bridge of 2 x 25 MB/s carries in a millisecond, a power of two, is less than the shortest chunk."""
    copies = {f"{vendor}:0/{way}": 5e9 for vendor in ("cuda", "hip") for way in ("device_to_host", "host_to_device")}
    slow = written(tmp_path / "slow", {**host_rates(25e6), **copies}, simulated=True)
    fast = written(tmp_path / "fast", {**host_rates(5e9), **copies}, simulated=True)

    def body(comm: isthmus.Comm) -> Any:
        x = np.full(1 << 20, comm.rank + 1, np.float32)
        OnDevice(comm).all_reduce(x)
        assert (x == sum(range(1, comm.size + 1))).all()
        said = comm.explain("all_reduce", nbytes=x.nbytes)
        return said.data["chunk"], said.data["paced_bytes"], "the slowest bridge carries" in str(said)

    usual = {chunk for chunk, paced, said in run_fleet(fleet, body, bridge="tcp") if paced is None and not said}
    assert usual == {chunk for chunk, _, _ in run_fleet(fleet, body, bridge="tcp", env={"ISTHMUS_PROFILE": fast})}
    far = run_fleet(fleet, body, bridge="tcp", env={"ISTHMUS_PROFILE": slow, "ISTHMUS_FAR_US": "1"})
    assert usual == {chunk for chunk, paced, said in far if paced is None and not said}, "little would be under way"
    near = {"ISTHMUS_PROFILE": slow, "ISTHMUS_FAR_US": "1000000"}
    for chunk, paced, said in run_fleet(fleet, body, bridge="tcp", env=near):
        assert least << 10 <= chunk <= (least << 10) + 4096 < min(usual)
        assert paced == 16_384 * int(fleet[7]) and said


def test_a_profile_that_one_rank_lacks_changes_nothing_and_is_said(processes: Run, tmp_path: Path) -> None:
    profiles = [written(tmp_path / "0", host_rates(9e9)), ""]

    def unknown(comm: isthmus.Comm) -> tuple[list[float], Any, str]:
        plan = comm.explain("all_reduce", nbytes=1 << 20)
        return [group["weight"] for group in comm.topology()["groups"]], plan.data["predicted"], str(plan)

    for weights, predicted, text in processes(2, lambda comm: on_islands(comm, unknown, "ab", PROFILE=profiles)):
        assert weights == [1, 1] and predicted is None
        assert "predicted unknown: rank 1 has no profile" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be opened"),
        ("", "byte 1 of 0: expected JSON"),
        ("{" * 2_000_000, "more than 1048576 bytes"),
        ('{"schema": 7}', "schema: this version"),
        (json.dumps({"schema": 1, "host": "h", "date": "", "simulated": False, "entries": [{"name": "x"}]}), "entries[0]"),
    ],
)
def test_a_bad_profile_is_an_error_on_every_rank_that_names_the_file(tmp_path: Path, text: str | None, said: str) -> None:
    good, bad = written(tmp_path / "good", host_rates(1e9)), tmp_path / "bad profile"
    if text is not None:
        bad.write_text(text)
    unique_id, errors = isthmus.unique_id(), dict[int, str]()

    def join(rank: int) -> None:
        try:
            isthmus.init(rank, 2, unique_id=unique_id, settings={"PROFILE": [good, bad][rank]}, timeout=DEADLINE)
        except isthmus.ConfigError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors.keys() == {0, 1}
    for error in errors.values():
        assert "on rank 1" in error and f"ISTHMUS_PROFILE={bad}" in error and said in error


def test_a_folder_and_a_pipe_are_no_profiles(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(isthmus.ConfigError, match="no regular file"):
            isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings={"PROFILE": path})


def test_explain_tells_the_predicted_and_the_last_time(ranks: Run, tmp_path: Path) -> None:
    profile = written(tmp_path / "profile", host_rates(1e9))

    def times(comm: isthmus.Comm) -> tuple[Any, ...]:
        shape: dict[str, Any] = {"nbytes": 4 << 20, "op": "max"}
        before = comm.explain("all_reduce", **shape)
        x = np.ones(1 << 20, np.float32)
        comm.all_reduce(x, "sum")  # another shape
        other = comm.explain("all_reduce", **shape).data["last"]
        comm.all_reduce(x, "max")
        comm.all_reduce(x, "max")
        after = comm.explain("all_reduce", **shape)
        duration = [entry["duration_us"] for entry in comm.dump()["entries"] if entry["op"] == "max"][-1] * 1e-6
        return before.data["predicted"], before.data["last"], str(before), other, after.data["last"], str(after), duration

    for predicted, before, text, other, last, told, duration in ranks(
        2, lambda comm: on_islands(comm, times, "ab", PROFILE=profile)
    ):
        assert predicted["seconds"] >= predicted["bridge"] == pytest.approx((4 << 20) / 1e9)
        assert not predicted["simulated"] and "predicted" in text and "busiest bridge" in text
        assert before is None and "last      unknown" in text and other is None
        assert last["seconds"] == pytest.approx(duration, rel=1e-6) and last["bytes"] == 4 << 20
        assert f"call {last['sequence']} on this rank" in told


def test_without_a_profile_the_prediction_is_unknown_where_something_is_bridged(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        found: list[Any] = []
        for name, root in (("all_reduce", 0), ("send" if comm.rank == 0 else "recv", 1 - comm.rank)):
            for nbytes in (64, 1 << 20):
                plan = comm.explain(name, nbytes=nbytes, root=root)
                found.append((plan.data["predicted"], str(plan)))
        return found

    for predicted, text in [told for rank in ranks(2, body) for told in rank]:
        assert predicted is None and "predicted" not in text and "profile" not in text, text
    for predicted, text in [told for rank in ranks(2, lambda comm: on_islands(comm, body, "ab")) for told in rank]:
        assert predicted is None and "predicted unknown: " in text, text
        if "1.0 MiB" in text or "1048576 bytes" in text:
            assert "has no profile with the rate" in text and "isthmus tune" in text, text


def test_the_text_says_what_its_words_mean_where_it_has_them(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[str]:
        return [str(comm.explain(name, nbytes=1 << 20)) for name in ("all_reduce", "send")]

    for collective, message in ranks(2, body):
        last = collective.rstrip().splitlines()[-1]
        assert last.startswith("  words   t-1: ") and last.endswith("(docs/explain/plans.md)"), collective
        assert "post" in last and "slot" in last and "words " not in message
    assert "## The text of explain" in (Path(__file__).parents[2] / "docs" / "explain" / "plans.md").read_text()


def test_a_place_that_takes_no_file_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tune, "under_launcher", lambda: False)
    monkeypatch.setattr(tune, "measure", lambda seconds: pytest.fail("it has measured"))
    with pytest.raises(isthmus.Error, match="cannot be written"):
        tune.run(argparse.Namespace(output=str(tmp_path / "profile"), seconds=6.0))


def test_a_file_system_that_has_become_read_only_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(*_unused: object, **_more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_text", refuses)
    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(isthmus.Error, match="cannot be written: .*Read-only file system"):
        tune.write(tmp_path / "profile", {})
