"""The tensors of a job that all its ranks hold alike, and what they were at the end of the last finished step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from isthmus._errors import ArgumentError
from isthmus.elastic._frames import LONGEST_NAME, MOST_DIMENSIONS, Frame

_BLOCK = 1 << 20  # bytes that are compared, and copied where they differ, at a time: they stay in a core's cache

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def digest(data: Bytes) -> bytes:
    """128 bits."""
    return hashlib.blake2b(data.data, digest_size=16).digest()


class _NumPy:
    """A NumPy array seen as bytes."""

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        if not array.flags.c_contiguous or not array.flags.writeable or array.dtype.hasobject or not array.dtype.isnative:
            raise ArgumentError(
                f"State: '{name}' must be a contiguous, writable array of numbers in this machine's byte order; it has "
                f"dtype {array.dtype} and strides {array.strides}"
            )
        self.array = array
        self.dtype, self.shape = array.dtype.name, array.shape

    def read(self) -> Bytes:
        return self.array.reshape(-1).view(np.uint8)

    def write(self, data: Bytes) -> None:
        self.read()[:] = data


class _Torch:
    """A torch tensor seen as bytes, on whatever device it is."""

    def __init__(self, name: str, tensor: Any) -> None:
        if tensor.is_sparse or tensor.is_quantized:
            raise ArgumentError(f"State: '{name}' must be a dense tensor; it is {tensor.layout} {tensor.dtype}")
        self.tensor = tensor
        self.dtype, self.shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)

    def read(self) -> Bytes:
        import torch

        flat = self.tensor.detach().cpu().contiguous().reshape(-1)
        data: Bytes = flat.view(torch.uint8).numpy()
        return data

    def write(self, data: Bytes) -> None:
        import torch

        if not len(data):
            return
        given = torch.from_numpy(data.copy()).view(self.tensor.dtype).reshape(self.shape)
        self.tensor.detach().copy_(given)


class _Entry:
    """One tensor, what it was at the end of the last finished step, and the step that last changed it."""

    def __init__(self, name: str, tensor: Any) -> None:
        if len(name.encode()) > LONGEST_NAME:
            raise ArgumentError(f"State: the name '{name[:40]}...' is longer than {LONGEST_NAME} bytes")
        if isinstance(tensor, np.ndarray):
            self.tensor: _NumPy | _Torch = _NumPy(name, tensor)
        elif type(tensor).__module__.partition(".")[0] == "torch" and hasattr(tensor, "detach"):
            self.tensor = _Torch(name, tensor)
        else:
            raise ArgumentError(f"State: '{name}' must be a NumPy array or a torch tensor, not {type(tensor).__name__}")
        if len(self.tensor.shape) > MOST_DIMENSIONS:
            raise ArgumentError(f"State: '{name}' has {len(self.tensor.shape)} dimensions; {MOST_DIMENSIONS} are the most")
        self.name = name
        self.revision = 0
        self.saved = self.tensor.read().copy()

    def save(self, step: int) -> None:
        now = self.tensor.read()
        for begin in range(0, len(now), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            if not np.array_equal(now[block], self.saved[block]):
                self.saved[block] = now[block]
                self.revision = step

    def frame(self) -> Frame:
        return Frame(self.name, self.tensor.dtype, tuple(self.tensor.shape), self.revision, digest(self.saved))


class State:
    """Named tensors, NumPy's or torch's, that all ranks of a job hold alike at the end of every step.

    A step works on the tensors themselves. What must survive a loss and is no tensor (a random state, a position in the
    data) goes into a small array.

    The state keeps a copy of each tensor as it was at the end of the last finished step. So it takes its own size once more
    in the host's memory, and each step costs one comparison with that copy.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = dict(tensors)
        self._entries = [_Entry(name, self._tensors[name]) for name in sorted(self._tensors)]
        self._step = 0

    @property
    def step(self) -> int:
        """How many steps are finished."""
        return self._step

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Copies `value` into the tensor of that name."""
        tensor = self._tensors[name]
        if value is not tensor:  # as it is after state["w"] *= 2
            tensor[...] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def revision(self, name: str) -> int:
        """The step at whose end the tensor last had other bits than before."""
        return next(entry.revision for entry in self._entries if entry.name == name)

    def finish(self) -> None:
        """One more step is finished."""
        self._step += 1
        for entry in self._entries:
            entry.save(self._step)

    def restore(self) -> None:
        """Makes the tensors what they were at the end of the last finished step."""
        for entry in self._entries:
            entry.tensor.write(entry.saved)

    def frames(self) -> list[Frame]:
        """What this rank holds, in the order of the names."""
        return [entry.frame() for entry in self._entries]

    def saved(self, place: int) -> Bytes:
        """The bytes of one tensor at the end of the last finished step."""
        saved: Bytes = self._entries[place].saved
        return saved

    def adopt(self, step: int, frames: list[Frame], data: Mapping[int, Bytes]) -> None:
        """Takes over another rank's state: the tensors in `data`, by their place; this rank has the rest alike."""
        self._step = step
        for place, entry in enumerate(self._entries):
            if place in data:
                entry.saved = data[place]
            entry.revision = frames[place].revision
        self.restore()
