"""Whether full processors make the watch for silence (ISTHMUS_SILENCE_MS) lose a process that lives.

    .venv/bin/python bench/beats.py                  # a few minutes; writes bench/results/beats.json
    .venv/bin/python bench/beats.py --beats 20000    # shows that the program runs

Some ranks, a process each, hear each other's heartbeats at the shortest interval that there is, and do nothing else. Beside
them twice as many processes as there are processors compute without a pause, at the same priority. An alarm is a rank that
lost another: all live until the end, so each alarm is a false one. The load of the machine is part of the figure: beside
many more processes than processors a rank may truly get no processor for the time of the watch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from circumstances import circumstances

ROOT = Path(__file__).resolve().parent.parent
RANK = """
import os, sys, time, isthmus
comm = isthmus.init()
comm.barrier()
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.5)
    print(isthmus.context_stats()["heartbeats"], flush=True)
lost = ""
try:
    comm.barrier()
except isthmus.Error as error:
    lost = " ".join(str(error).split())
if not lost:
    comm.destroy()
print("lost " + lost if lost else "well", flush=True)
os._exit(0)
"""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--beats", type=int, default=1_000_000)
    flags.add_argument("--ranks", type=int, default=10)
    flags.add_argument("--heartbeat-ms", type=int, default=10)
    flags.add_argument("--silence-ms", type=int, default=400)
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "beats.json")
    given = flags.parse_args()
    made = circumstances()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.DEVNULL)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    ranks: list[subprocess.Popen[str]] = []
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            over = Path(folder, "over")
            settings = {
                "ISTHMUS_WORLD_SIZE": str(given.ranks),
                "ISTHMUS_ADDRESS": "127.0.0.1:29533",
                "ISTHMUS_HEARTBEAT_MS": str(given.heartbeat_ms),
                "ISTHMUS_SILENCE_MS": str(given.silence_ms),
                "ISTHMUS_TIMEOUT": "120",
            }
            for rank in range(given.ranks):
                own = {**os.environ, **settings, "ISTHMUS_RANK": str(rank)}
                command = [sys.executable, "-c", RANK, str(over)]
                ranks.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
            heard = [0] * given.ranks
            while sum(heard) < given.beats and all(rank.poll() is None for rank in ranks):
                for number, rank in enumerate(ranks):
                    assert rank.stdout
                    said = rank.stdout.readline().strip()
                    if said.isdigit():
                        heard[number] = int(said)
            over.touch()
            ends = [rank.communicate(timeout=150)[0].split("\n")[-2] for rank in ranks]
    finally:
        for process in busy + ranks:
            process.kill()
            process.wait()
    alarms = [end for end in ends if end != "well"]
    found = {
        **made,
        "heartbeats": sum(heard),
        "alarms": len(alarms),
        "seconds": round(time.monotonic() - begin, 1),
        "ranks": given.ranks,
        "pairs": given.ranks * (given.ranks - 1),
        "heartbeat_ms": given.heartbeat_ms,
        "silence_ms": given.silence_ms,
        "said": alarms,
    }
    print(json.dumps(found, indent=1))
    given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
