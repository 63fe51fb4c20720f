"""docs/start/two-hosts.md, word for word, on two hosts (hosts.py) that let nothing through but the ports that it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import ADDRESSES, Hosts, end, missing, two_hosts
from patience import SOON, patient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "two-hosts.md"
ADDRESS, INTERFACE, KEY = "10.0.0.1", "eth0", "job.key"


def blocks() -> list[tuple[str, str]]:
    """The page's blocks of code, each with its language."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def told(machine: int) -> list[str]:
    """What one types on that machine, behind the installation, in the page's order."""
    mine = []
    for language, text in blocks():
        first, _, rest = text.partition("\n")
        if not language and "source tree" not in first and "AB"[machine] in first.removeprefix("# on "):
            mine.append(rest.replace(ADDRESS, ADDRESSES["IPv4"].format(1)).replace(INTERFACE, f"cable{machine}"))
    return mine


def run(hosts: Hosts, folders: list[Path], scripts: list[str]) -> list[tuple[str, str]]:
    """Each machine its own, side by side; what they print, when all have ended well."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ISTHMUS_", "MASTER_", "TORCH"))}
    env["ISTHMUS_LOG"] = "info"
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", hosts.names[n], "bash", "-euc", script],
            cwd=folders[n],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n, script in enumerate(scripts)
    ]
    try:
        said = [one.communicate(timeout=8 * SOON) for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.terminate()  # torchrun ends its ranks
                one.communicate(timeout=SOON)
    assert [one.returncode for one in started] == [0, 0], said
    return said


def reaches(hosts: Hosts, port: int) -> str:
    """How a connection from host 1 to host 0 ends, where nobody listens."""
    ask = f"import socket; print(socket.socket().connect_ex(({ADDRESSES['IPv4'].format(1)!r}, {port})))"
    command = ["ip", "netns", "exec", hosts.names[1], sys.executable, "-c", ask]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=True)
    return os.strerror(int(ended.stdout))


def test_the_commands_of_the_page_train_and_show_two_hosts_through_the_ports_that_it_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if not shutil.which("openssl"):
        missing("the page makes its key with openssl")
    (program,) = [text for language, text in blocks() if language == "python"]
    (shown,) = [text for language, text in blocks() if language == "text"]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(program)
    key, settings, train, topo = told(0)
    theirs = told(1)
    assert len(theirs) == 3 and theirs[1:] == [one.replace("--node-rank 0", "--node-rank 1") for one in (train, topo)]
    with two_hosts() as hosts:
        hosts.fence("29500-29501", "29600-29631")
        assert reaches(hosts, 29600) == "Connection refused" and reaches(hosts, 29632) == "Permission denied"
        run(hosts, folders, [key, ""])
        shutil.copy(folders[0] / KEY, folders[1] / KEY)
        said = run(hosts, folders, [settings + train, theirs[0] + theirs[1]])
        # Not by lines: torchrun runs its ranks with -u, so the two of a host write a line and its end apart, into one pipe.
        ranks = [re.findall(r"rank (\d): 4 ranks, loss \d", output) for output, _ in said]
        assert [sorted(found) for found in ranks] == [["0", "1"], ["2", "3"]], said
        (output, log), (nothing, _) = run(hosts, folders, [settings + topo, theirs[0] + theirs[2]])
    assert nothing == "" and re.search(r"rank 0 of 4 on \S+, 2 islands", log), log
    assert plain(output) == plain(shown), output
    assert re.findall(r"host \S+ \((.*)\)", output) == [ADDRESSES["IPv4"].format(n) for n in (1, 2)]


def test_a_port_that_a_firewall_keeps_closed_is_named_on_both_hosts() -> None:
    settings = {"ISTHMUS_PORTS": "29600-29631", "ISTHMUS_TIMEOUT": str(patient(15))}
    with two_hosts() as hosts:
        hosts.fence("29511")  # the rendezvous
        ranks = hosts.start("IPv4", "work", settings=settings)
        try:
            errors = [rank.communicate(timeout=2 * SOON)[1] for rank in ranks]
        finally:
            end(ranks)
    for n, error in enumerate(errors):
        own, other = (re.escape(ADDRESSES["IPv4"].format(host)) for host in (1 + n, 2 - n))
        # What this rank could not reach; or, where the other one has given up a moment before, what that one could not.
        named = rf"rank {1 - n} (?:gave up: .*\({own}|.*\({other}):296[0-3]\d\)"
        assert re.search(rf"TimeoutError: init of 'world' on rank {n}: {named}", error), error


def plain(tree: str) -> str:
    """Without what differs from machine to machine: names, addresses, processes and NUMA nodes."""
    tree = re.sub(r"host \S+ \(\S+\)", "host", tree)
    return re.sub(r"pid \d+(  NUMA \d+)?", "pid", tree)
