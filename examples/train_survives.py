"""A training that loses ranks, takes in another and goes on: handwritten digits, ranks of four makers, isthmus.elastic.

    python examples/train_survives.py

The program starts its own ranks, over simulated vendors' libraries (`isthmus rehearse`). In epoch 3 a rank is killed. In
epoch 5 another one is stopped, as a machine that hangs, and left out. In epoch 7 a new process comes, on a device of another
maker than that rank's. They finish together. It prints what happened in four lines.

Each step has the same 96 digits, however many ranks share them. So a lost rank changes who computes what, and not what is
learnt. The digits are those inside scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import isthmus
from isthmus import elastic, rehearse

FLEET = "nvidia:2,amd:1,ascend:1,cpu:1"
KILLED, KILLED_IN = 2, 3  # the rank, and the epoch
STOPPED, STOPPED_IN = 3, 5
NEWCOMER, COMES_IN = "amd:1", 7
EPOCHS, BATCH = 12, 96
ENOUGH = 0.95  # of the held-out digits
SECONDS = float(os.environ.get("SURVIVES_SECONDS", "1"))  # within which a rank answers, or is left out
SILENCE = {"ISTHMUS_SILENCE_MS": str(int(1000 * SECONDS))}  # so a rank that is stopped is noticed without a deadline
BOARD = "SURVIVES_BOARD"  # names the folder in which the ranks leave tickets and the newcomer finds them
QUORUM = elastic.Quorum(least=2, answer=SECONDS)


def data() -> tuple[Any, ...]:
    """Training and held-out images (8 by 8, 0 to 1) and labels, the same on every rank."""
    found = importlib.util.find_spec("sklearn")  # whose file is read: to import it takes each rank a second
    if found is None or found.origin is None:
        raise SystemExit("the digits lie inside scikit-learn: pip install scikit-learn")
    digits = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    digits = np.random.default_rng(0).permutation(digits)
    images, labels, held_out = digits[:, :64] / np.float32(16), digits[:, 64].astype(int), len(digits) // 4
    return images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]


class Training:
    """A network of two layers, and what a step does with it."""

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        sizes = {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
        self.layers = {name: (chance.standard_normal(size) / 10).astype(np.float32) for name, size in sizes.items()}
        self.speed = {f"{name}.speed": np.zeros_like(layer) for name, layer in self.layers.items()}
        self.state = elastic.State({**self.layers, **self.speed})
        self.x, self.y, self.test_x, self.test_y = data()
        self.steps = len(self.x) // BATCH  # of an epoch

    def answers(self, x: Any) -> tuple[Any, Any]:
        hidden = np.maximum(x @ self.layers["w1"] + self.layers["b1"], 0)
        return hidden, hidden @ self.layers["w2"] + self.layers["b2"]

    def step(self, comm: isthmus.Comm, number: int) -> None:
        epoch, place = divmod(number, self.steps)
        suffer(comm, epoch + 1, place)
        order = np.random.default_rng(epoch).permutation(len(self.x))
        mine = order[place * BATCH : (place + 1) * BATCH][comm.rank :: comm.size]  # this rank's share
        x, y = self.x[mine], self.y[mine]
        hidden, out = self.answers(x)
        out = np.exp(out - out.max(axis=1, keepdims=True))
        error = out / out.sum(axis=1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        back = (error @ self.layers["w2"].T) * (hidden > 0)
        gradients = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        together = np.concatenate([gradients[name].ravel() for name in self.layers]) / np.float32(BATCH)
        comm.all_reduce(together)
        rate = np.float32(0.3 * (1 - number / (EPOCHS * self.steps)))
        begin = 0
        for name, layer in self.layers.items():
            gradient = together[begin : begin + layer.size].reshape(layer.shape)
            begin += layer.size
            speed = self.speed[f"{name}.speed"]
            speed *= 0.9
            speed += gradient
            layer -= rate * speed

    def accuracy(self) -> float:
        return float((self.answers(self.test_x)[1].argmax(axis=1) == self.test_y).mean())

    def bits(self) -> str:
        whole = b"".join(self.state[name].tobytes() for name in sorted(self.state))
        return hashlib.blake2b(whole, digest_size=16).hexdigest()


def board(name: str) -> Path:
    return Path(os.environ[BOARD]) / name


def wait_for(name: str) -> None:
    until = time.monotonic() + 600
    while not board(name).exists() and time.monotonic() < until:
        time.sleep(0.01)


def publish(ticket: str) -> None:
    board("next").write_text(ticket)
    board("next").rename(board("ticket"))  # whole, or not there


def suffer(comm: isthmus.Comm, epoch: int, place: int) -> None:
    """What befalls two of the ranks. (Their numbers among all that there have ever been are in ISTHMUS_RANK.)"""
    number = int(os.environ["ISTHMUS_RANK"])
    if comm.rank == 0 and (epoch, place, comm.size) == (COMES_IN, 4, 3):
        board("come").touch()
        while not comm.joiners(board("ticket").read_text()):  # so that it is this epoch on every machine
            time.sleep(0.01)
    if place == 4 and (number, epoch) == (KILLED, KILLED_IN):
        os.kill(os.getpid(), signal.SIGKILL)
    if place == 4 and (number, epoch) == (STOPPED, STOPPED_IN):
        os.kill(os.getpid(), signal.SIGSTOP)


def rank(newcomer: bool) -> int:
    training = Training()
    fleet = rehearse.parse_fleet(f"{FLEET},{NEWCOMER}")
    names = [f"rank {number} ({member.vendor})" for number, member in enumerate(fleet)]
    told: list[str] = []

    def changed(old: elastic.Members | None, new: elastic.Members) -> None:
        if old is not None:
            gone = " and ".join(names[number] for number in old.numbers if number not in new.numbers)
            come = " and ".join(names[number] for number in new.numbers if number not in old.numbers)
            what = f"{gone} was lost" if gone else f"{come} came"
            epoch, step = new.step // training.steps + 1, new.step % training.steps + 1
            told.append(f"epoch {epoch}: {what}; {new.size} ranks go on from step {step}")

    hooks: dict[str, Any] = {"steps": EPOCHS * training.steps, "quorum": QUORUM, "on_change": changed, "on_ticket": publish}
    if newcomer:  # all that takes time is done; now it waits for its cue
        board("ready").touch()
        wait_for("come")
        comm = elastic.join(training.step, board("ticket").read_text(), training.state, timeout=4 * SECONDS, **hooks)
    else:
        wait_for("ready")  # as if the job had run for hours
        comm = elastic.run(training.step, isthmus.init(timeout=4 * SECONDS), training.state, **hooks)
    every = comm.all_gather(np.frombuffer(training.bits().encode(), np.uint8).copy())
    agree, reached = len({one.tobytes() for one in every}) == 1, training.accuracy()
    if comm.rank == 0:
        enough = "enough" if reached >= ENOUGH else f"less than {ENOUGH:.0%}"
        bits = f"identical bits: {training.bits()}" if agree else "UNLIKE BITS"
        told.append(f"held-out accuracy {reached:.2%} ({enough}); {comm.size} ranks hold {bits}")
        print("\n".join(told), flush=True)
    comm.destroy()
    return 0 if agree and reached >= ENOUGH else 1


def main() -> int:
    """Starts the ranks and the newcomer, and waits for those that finish."""
    this = [sys.executable, str(Path(__file__).resolve())]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({BOARD: folder, **SILENCE})
        with (
            rehearse.start([*this, "rank"], FLEET, show=True) as job,
            rehearse.start([*this, "newcomer"], NEWCOMER, show=True) as late,
        ):
            ends = [process.wait() for number, process in enumerate(job.processes) if number not in (KILLED, STOPPED)]
            if not any(ends):
                ends += [process.wait() for process in late.processes]
    return max(map(abs, ends))


if __name__ == "__main__":
    sys.exit(rank(sys.argv[1] == "newcomer") if sys.argv[1:] else main())
