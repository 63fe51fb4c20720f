"""What a vendor's library is called with, behind its door and without: every call, in its order, with its arguments.

Communicators of one vendor are made on the way that all take, and then found to be the library's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doors import DOORS, HERE, compile_c, preloaded
from spanning import VENDORS, check, fleet, run

pytestmark = preloaded
ARENA = 8 << 20  # script.c has so much memory of each device
Recorder = Callable[[str], Path]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """record.c in front of this vendor's simulated library, in a folder of its own under the library's name."""

    def build(letter: str) -> Path:
        door, folder = DOORS[VENDORS[letter]], tmp_path / "recorder"
        folder.mkdir()
        # A library without a SONAME is needed by its path, and then the simulated one is there.
        simulated, source, made = folder / "simulated.so", folder / "none.c", folder / door.soname
        source.write_text("int none;\n")
        compile_c("-shared", "-fPIC", source, "-o", simulated)
        macros: list[str] = [f'-DSIMULATED="{door.real}"', *(["-DASCEND"] if letter == "h" else [])]
        needed: list[str | Path] = ["-Wl,--no-as-needed", simulated, "-ldl"]
        compile_c("-shared", "-fPIC", *macros, f"-Wl,-soname,{door.soname}", HERE / "record.c", "-o", made, *needed)
        simulated.unlink()
        simulated.symlink_to(door.real)
        return made

    return build


def named(records: list[list[str]]) -> list[list[str]]:
    """Addresses and ids by what they are: what a rank made or used first is 0. Memory by its place from a device's first."""
    ids: dict[str, str] = {}
    told = []
    for record in records:
        seen: dict[str, str] = {}
        firsts: list[int] = []
        number = {"made": 0}
        lines = []
        for line in record:
            name, *words = line.split()
            for at, word in enumerate(words):
                kind, rest = word[0], word[1:]
                if kind == "n" and rest != "(nil)":
                    seen["c" + rest] = words[at] = f"communicator {number['made']}"
                    number["made"] += 1
                elif kind == "c":
                    words[at] = seen.get(word, "a communicator that was not made")
                elif kind == "i":
                    words[at] = ids.setdefault(word, f"id {len(ids)}")
                elif kind == "s" and rest != "(nil)":
                    words[at] = seen.setdefault(word, f"stream {sum(key[0] == 's' for key in seen)}")
                elif kind == "b" and rest != "(nil)":
                    place = int(rest, 16)
                    if not any(abs(place - first) < ARENA for first in firsts):
                        firsts.append(place)
                    which = next(i for i, first in enumerate(firsts) if abs(place - first) < ARENA)
                    words[at] = f"memory {which} {place - firsts[which]:+d}"
            lines.append(" | ".join([name, *words]))
        told.append(lines)
    return told


def recorded(
    vendors: str,
    lines: list[str],
    inputs: int,
    behind: bool,
    library: Path,
    programs: dict[str, Path],
    folder: Path,
    last: list[str] | None = None,
) -> tuple[list[list[str]], list[bytes]]:
    """What the library of each rank was called with, and what the ranks got. {} in a line is the rank. The last rank may
    have lines of its own. There are two ids."""
    ranks, door = fleet(vendors), DOORS[VENDORS[vendors[0]]]
    folder.mkdir()
    if len(ranks) > 1:
        # HCCL's inits with several take those that were made for it.
        maker = "root" if vendors[0] == "h" and any(line.startswith("scalable") for line in lines) else "id"
        ranks[0].say(maker)
        ranks[1].say("use second", maker, "use id")
    for number, rank in enumerate(ranks):
        mine = lines if last is None or rank is not ranks[-1] else last
        rank.say(*(line.format(number, next=(number + 1) % len(ranks), last=(number - 1) % len(ranks)) for line in mine))
        rank.inputs.append(bytes(range(1, 101)) * (inputs // 100 + 1))
        rank.environment["RECORD"] = str(folder / f"record.{number}")
        rank.environment["LD_LIBRARY_PATH"] = f"{library.parent}:{door.simulated}"
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, programs, folder, behind=behind)
    check(ranks)
    if behind and len(ranks) > 1:
        assert all("gets the communicator" in rank.logged for rank in ranks), ranks[0].logged
    records = [(folder / f"record.{number}").read_text().splitlines() for number in range(len(ranks))]
    return named(records), [rank.output for rank in ranks]


EVERY_CALL = [
    "all_reduce 7 2 5 0 0 0",
    "all_reduce 3 0 7 0 1 1",
    "reduce 8 3 6 1 0 2",
    "broadcast 2 0 9 1 0 1",
    "all_gather 4 0 3 0 0 0",
    "reduce_scatter 7 0 4 0 0 2",
]
NCCLS_CALLS = [
    *EVERY_CALL,
    "bcast 7 0 5 1 0 1",
    "scale 7 1",
    "all_reduce 7 -1 5 0 0 0",
    "unscale",
    "group",
    "all_reduce 7 0 5 0 0 1",
    "all_reduce 0 1 8 0 1 0",
    "send 7 0 5 {next} 0 1",
    "recv 7 0 5 {last} 0 1",
    "end",
    "register",
    "ask",
]
END = ["wait", "finalize", "destroy"]
INITS = {
    "init": ["init"],
    "config": ["init 1"],
    "group": ["group", "init", "end"],
    "split": ["init", "split 0 {0}"],
    "reversed split": ["init", "split 0 -{0}", "all_reduce 7 0 5 0 0 1", "comm 0"],
}


NCCLS_INITS = {"scalable": ["scalable {0} 2 second"]}  # that the simulated RCCL, which is older, does not have


def by_name(record: list[str], name: str) -> list[str]:
    return [line for line in record if line.startswith(name)]


@pytest.mark.parametrize(
    ("init", "vendors"),
    [*((init, vendors) for init in INITS for vendors in ("nn", "aa")), *((init, "nn") for init in NCCLS_INITS)],
)
def test_a_library_is_called_with_what_it_is_called_with_without_isthmus(
    init: str, vendors: str, recorder: Recorder, scripted: dict[str, Path], tmp_path: Path
) -> None:
    library, lines = recorder(vendors[0]), [*(INITS | NCCLS_INITS)[init], *NCCLS_CALLS, *END]
    bare, wanted = recorded(vendors, lines, 4000, False, library, scripted, tmp_path / "bare")
    behind, got = recorded(vendors, lines, 4000, True, library, scripted, tmp_path / "behind")
    assert wanted == got and len(wanted[0]) > 100
    for before, after in zip(bare, behind, strict=True):
        assert len(by_name(before, "ncclAllReduce")) >= 5 and by_name(before, "ncclCommInit") and by_name(before, "ncclSend")
        assert by_name(before, "ncclCommRegister") and by_name(before, "ncclCommDeregister")
        assert "not made" not in str(before)
        # The version of the library, for the first init and for the line of the log: all that differs.
        version = by_name(after, "ncclGetVersion")
        assert len(version) == 2 and [line for line in after if line not in version] == before


@pytest.mark.parametrize("flags", [0, 1])
def test_what_is_left_of_a_communicator_is_called_with_the_same(
    flags: int, recorder: Recorder, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Of three ranks by the first two. The flag ends what the whole has to do, and it is aborted here in either case."""
    library = recorder("n")
    lines = [
        "init",
        "all_reduce 7 0 5 0 0 0",
        "wait",
        "expect done",
        f"shrink 2 {flags}",
        "ask",
        "all_reduce 7 0 5 0 0 1",
        "wait",
    ]
    lines += ["destroy", "comm 0", "abort"]
    last = ["init", "all_reduce 7 0 5 0 0 0", "wait", "touch done", "abort"]
    bare, wanted = recorded("nnn", lines, 4000, False, library, scripted, tmp_path / "bare", last)
    behind, got = recorded("nnn", lines, 4000, True, library, scripted, tmp_path / "behind", last)
    assert wanted == got and len(wanted[0]) == 40 and "not made" not in str(bare)
    for number, (before, after) in enumerate(zip(bare, behind, strict=True)):
        shrinks = by_name(before, "ncclCommShrink")
        assert shrinks == (
            [f"ncclCommShrink | =0 | communicator 0 | 2 | 1 | 0 | communicator 1 | {flags}"] if number < 2 else []
        )
        assert [line for line in after if "GetVersion" not in line] == before


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_communicators_of_one_process_are_called_with_the_same(
    vendor: str, recorder: Recorder, scripted: dict[str, Path], tmp_path: Path
) -> None:
    lines = ["all 2"]
    for call in ("all_reduce 7 2 5 0 0 0", "broadcast 2 0 9 1 0 1", "all_gather 4 0 3 0 0 0", "reduce_scatter 7 0 4 0 0 2"):
        lines += ["group", "device 1", "comm 0", call, "device 0", "comm 1", call, "end"]
    lines += ["wait", "destroy", "device 1", "comm 0", "destroy"]
    library = recorder(vendor)
    ((before,), wanted) = recorded(vendor, lines, 4000, False, library, scripted, tmp_path / "bare")
    ((after,), got) = recorded(vendor, lines, 4000, True, library, scripted, tmp_path / "behind")
    assert wanted == got and len(wanted[0]) > 100
    assert (
        before[0].lower().split(" | ")[1:] == ["=0", "2", "1", "0", "communicator 0", "communicator 1"] and len(before) >= 19
    )
    assert "not made" not in str(before) and [line for line in after if "GetVersion" not in line] == before


HCCLS_CALLS = [
    *EVERY_CALL,
    "scatter 7 0 5 1 0 1",
    "barrier 2",
    "batch 7 5 1",
    "group",
    "all_reduce 7 0 5 0 0 0",
    "all_reduce 7 0 5 0 1 1",
    "end",
    "ask",
    "wait",
    "destroy",
]
HCCLS_INITS = {
    "init": ["init"],
    "config": ["init 1"],
    "scalable": ["scalable {0} 2 second"],
    "part": ["init", "part 7 0 1"],
    "part the other way round": ["init", "part 8 1 0", "all_reduce 7 0 5 0 0 1", "comm 0"],
}


@pytest.mark.parametrize("init", HCCLS_INITS)
def test_hccl_is_called_with_what_it_is_called_with_without_isthmus(
    init: str, recorder: Recorder, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Nothing differs but the end of the root info."""
    library, lines = recorder("h"), [*HCCLS_INITS[init], *HCCLS_CALLS]
    bare, wanted = recorded("hh", lines, 4000, False, library, scripted, tmp_path / "bare")
    behind, got = recorded("hh", lines, 4000, True, library, scripted, tmp_path / "behind")
    assert wanted == got and len(wanted[0]) > 100 and "not made" not in str(bare) and behind == bare
    for record in bare:
        assert (
            len(by_name(record, "HcclAllReduce")) >= 4 and by_name(record, "HcclCommInit") and by_name(record, "HcclBatch")
        )
