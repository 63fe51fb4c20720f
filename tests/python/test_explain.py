"""What `comm.explain()` says on fleets of several vendors: path, predicted and last time of all that a rank can call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from devices import OnDevice, on_host, run_fleet
from profiles import host_rates, star_of, written

Run = Callable[..., list[Any]]
SMALL, LARGE = 64, 4 << 20
NAMES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v", "all_to_all",
    "all_to_all_v", "gather", "gather_v", "scatter", "scatter_v", "barrier",
)  # fmt: skip
BY_LIBRARY = {"all_reduce", "broadcast", "all_gather", "reduce", "reduce_scatter"}
BY_SLOTS = BY_LIBRARY | {"all_gather_v", "reduce_scatter_v"}  # what the library does where all stand on one host


def told(comm: isthmus.Comm) -> Any:
    """What is said of every call before and after some of them, of messages, and once the communicator has failed."""
    here: Any = comm if on_host() else OnDevice(comm)
    before = comm.explain("all_reduce", nbytes=SMALL).data["last"]
    calls, messages = {}, {}
    for nbytes in (SMALL, LARGE):
        x = np.ones(nbytes // 4, np.float32)
        here.all_reduce(x)
        here.broadcast(x, root=0)
        comm.barrier()
        if comm.rank:
            here.send(x, 0)
        for peer in range(1, comm.size if comm.rank == 0 else 1):
            here.recv(x, peer)
        for name in NAMES:
            calls[name, nbytes] = comm.explain(name, nbytes=nbytes).data
        for peer in [0] if comm.rank else range(1, comm.size):
            messages[peer, nbytes] = comm.explain("send" if comm.rank else "recv", nbytes=nbytes, root=peer).data
    sends = [entry["bytes"] for entry in comm.dump()["entries"] if entry["collective"] in ("send", "recv")]
    with pytest.raises(isthmus.Error):  # whichever rank hears of it where
        comm.barrier()
        if comm.rank == 0:
            comm.abort("enough")
        here.all_reduce(x)
    return before, calls, messages, sends, comm.explain("all_reduce", nbytes=LARGE).data


@pytest.mark.parametrize("bridge", ["memory", "tcp"])
def test_every_call_has_its_path_its_prediction_and_its_last_time(tmp_path: Path, bridge: str) -> None:
    copies = {f"{device}/{way}": 2e9 for device in ("cuda:0", "hip:0") for way in ("device_to_host", "host_to_device")}
    star = {bridge: star_of(2048)}
    profile = written(tmp_path / "profile", {**host_rates(1e9), **copies}, simulated=True, star=star)
    tcp = bridge == "tcp"
    fleet = "nvidia:2@a,amd:1@b,cpu:1@c" if tcp else "nvidia:2,amd:1,cpu:1"
    results = run_fleet(fleet, told, bridge="tcp" if tcp else None, env={"ISTHMUS_PROFILE": profile})
    for rank, (before, calls, messages, sends, after) in enumerate(results):
        assert before is None
        for (name, nbytes), data in calls.items():
            text = data["text"]
            assert all(f"\n  {word} " in text for word in ("path  ", "cost  ", "predicted", "last  ")), text
            way = text.split("  path    ")[1].split("\n")[0]
            if tcp:
                assert way.startswith("bridged by TCP: 3 groups"), text
            elif name in BY_SLOTS:
                assert way.startswith("slots that all read: 2 groups"), text
            else:
                assert way.startswith("flat: 4 ranks"), text
            assert ("served by nccl" in way) == (rank < 2 and name in (BY_LIBRARY if tcp else BY_SLOTS)), text
            known = nbytes == LARGE and not name.endswith("_v") and name != "barrier"
            assert (data["predicted"] is not None) == known and ("no measurement" in text) == (
                known or data["form"] is not None
            ), text
            assert (data["last"] is not None) == (name in ("all_reduce", "broadcast", "barrier")), text
            has_form = name in ("all_reduce", "reduce", "broadcast")
            assert data["form"] == (("leader exchange" if nbytes == SMALL else "pieces") if has_form else None)
            if has_form:
                assert data["leader_exchange"] == {"bytes": 2048, "from": "profile", "simulated": True}
        assert len(messages) == (6 if rank == 0 else 2) and sends == [
            n for n in (SMALL, LARGE) for _ in range(len(messages) // 2)
        ]
        for (peer, nbytes), data in messages.items():
            sender = rank or peer
            over_tcp = tcp and sender > 1  # ranks 0 and 1 are of one island
            assert data["link"] == ("TCP" if over_tcp else "shared memory"), data["text"]
            slot = not over_tcp and sender < 3  # a rank of the host sends by the link
            assert data["path"] == ("slot" if slot else "at once" if nbytes == SMALL else "asked for"), data["text"]
            assert (data["parts"] > 1) == (nbytes == LARGE) and data["parts"] * data["part_bytes"] >= nbytes
            assert data["last"]["bytes"] == nbytes and data["last"]["seconds"] > 0, "the whole message, whatever its parts"
            assert (data["predicted"] is not None) == (nbytes == LARGE), data["text"]
            if nbytes == LARGE:
                parts = data["predicted"]
                assert parts["out"] == pytest.approx(LARGE / 2e9 if sender < 3 else 0)
                assert parts["link"] == pytest.approx(0 if slot else LARGE / (1e9 if over_tcp else 2e9))
                assert parts["simulated"] and parts["seconds"] >= max(parts["out"], parts["link"], parts["in"])
            assert all(f"\n  {word} " in data["text"] for word in ("path  ", "predicted", "last  ")), data["text"]
        assert after["last"] == calls["all_reduce", LARGE]["last"], "what failed has no time"


def whole_blocks(comm: isthmus.Comm) -> Any:
    names = ("all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v", "all_to_all_v")
    return {name: comm.explain(name, nbytes=LARGE, root=1).data for name in names}


def test_blocks_with_counts_of_one_island_are_its_librarys_whole() -> None:
    for rank, calls in enumerate(run_fleet("nvidia:3", whole_blocks)):
        root, own = rank == 1, "copy a block, input to output"
        between = [own, "nccl {} of 2 blocks, 2 calls together"] if root else ["nccl {} of a block, peer 1 of the group"]
        for name, steps in {
            "all_gather_v": [own, "nccl broadcast of 3 blocks, 3 calls together"],
            "reduce_scatter_v": ["nccl reduce of 3 blocks, 3 calls together"],
            "gather_v": [step.format("recv" if root else "send") for step in between],
            "scatter_v": [step.format("send" if root else "recv") for step in between],
        }.items():
            data = calls[name]
            assert [stage["steps"] for stage in data["stages"]] == [steps], data["text"]
            assert data["chunk"] is None and data["stages"][0]["chunk_bytes"] is None
            assert "path    island: nccl serves all 3 ranks" in data["text"]
            assert "chunks  none: whole blocks" in data["text"] and "cost    by the sizes of a call" in data["text"]
        data = calls["all_to_all_v"]
        steps = {stage["list"]: stage["steps"] for stage in data["stages"]}
        assert steps == {
            "device": ["wait for ready", "nccl all_to_all_v of the group's blocks, whole"],
            "host": ["post ready"],
        }, "its counts are known to two ranks each, and compared first: " + data["text"]


def of_an_exchange(comm: isthmus.Comm) -> Any:
    names = ("all_to_all", "all_to_all_v", "gather", "scatter_v")
    return {name: comm.explain(name, nbytes=LARGE, root=0).data for name in names}


def test_blocks_that_stay_in_an_island_are_its_librarys() -> None:
    for rank, calls in enumerate(run_fleet("nvidia:2,cpu:1", of_an_exchange)):
        for name, step in {
            "all_to_all": "nccl all_to_all_v of the group's blocks, whole (once)",
            "all_to_all_v": "nccl all_to_all_v of the group's blocks, whole (once)",
            "gather": f"nccl {'send' if rank else 'recv'} of 4.0 MiB, peer {1 - rank} of the group (once)",
            "scatter_v": f"nccl {'recv' if rank else 'send'} of a block, peer {1 - rank} of the group (once)",
        }.items():
            data = calls[name]
            served = rank < 2
            assert data["ccl"] == ("nccl" if served else "")
            assert ("inside  nccl moves what stays among ranks 0,1" in data["text"]) == served
            found = [one for stage in data["stages"] for one in stage["steps"] if one.startswith("nccl")]
            assert found == ([step] if served else []), data["text"]
            assert (data["chunks"] == 0) == name.endswith("_v")


def test_messages_from_any_rank_to_oneself_and_to_nobody(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> Any:
        any_rank = comm.explain("recv", nbytes=64, root=-1)
        own = comm.explain("send", nbytes=64, root=comm.rank)
        with pytest.raises(isthmus.ArgumentError, match=r"send: peer -1 is not a rank of '.*' \(0 to 1\)"):
            comm.explain("send", nbytes=64, root=-1)
        with pytest.raises(isthmus.ArgumentError, match=r"recv: peer 2 .* or -1 for any"):
            comm.explain("recv", nbytes=64, root=2)
        with pytest.raises(isthmus.ArgumentError, match="'sendrecv' is not a collective"):
            comm.explain("sendrecv", nbytes=64)
        return str(any_rank), any_rank.data["path"], str(own), own.data["last"]

    for any_rank, path, own, last in ranks(2, body):
        assert "from any rank" in any_rank and path is None and "the rank whose message comes first" in any_rank
        assert "this rank's memory" in own and last is None and "last      unknown" in own


def test_without_a_profile_no_time_is_asked_for_where_islands_of_a_host_read_each_others_slots() -> None:
    def body(comm: isthmus.Comm) -> list[str]:
        return [str(comm.explain(name, nbytes=LARGE)) for name in ("all_reduce", "reduce", "reduce_scatter")]

    for texts in run_fleet("nvidia:2,amd:1,cpu:1", body):
        for text in texts:
            assert "slots that all read: 2 groups" in text and "predicted" not in text, text
    for text in run_fleet("nvidia:2,amd:1,cpu:1", body, bridge="tcp")[0]:
        assert "bridged by TCP" in text and "predicted unknown: rank " in text, text
