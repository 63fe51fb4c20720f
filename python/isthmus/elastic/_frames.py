"""What ranks tell each other of their tensors, as bytes of a fixed form: nothing that is received can run.

A frame is one tensor: its name, dtype, shape, revision and digest. A table is a number of frames.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from isthmus._errors import MismatchError

LONGEST_NAME, LONGEST_DTYPE, MOST_DIMENSIONS, MOST_FRAMES = 255, 31, 8, 1 << 20
_COUNT, _LENGTHS, _TAIL = struct.Struct("<I"), struct.Struct("<BBB"), struct.Struct("<Q16s")


@dataclass(frozen=True)
class Frame:
    name: str
    dtype: str
    shape: tuple[int, ...]
    revision: int  # the step at whose end the tensor last had other bits than before
    digest: bytes  # 16

    def described(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def pack(frames: list[Frame]) -> bytes:
    parts = [_COUNT.pack(len(frames))]
    for frame in frames:
        name, dtype = frame.name.encode(), frame.dtype.encode()
        parts += [_LENGTHS.pack(len(name), len(dtype), len(frame.shape)), name, dtype]
        parts += [struct.pack(f"<{len(frame.shape)}Q", *frame.shape), _TAIL.pack(frame.revision, frame.digest)]
    return b"".join(parts)


def unpack(table: bytes) -> list[Frame]:
    """Raises MismatchError where the bytes are no table."""
    try:
        return _unpack(table)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise MismatchError(
            f"elastic: what another rank said of its tensors cannot be read ({error}); do all ranks run the same version?"
        ) from None


def _unpack(table: bytes) -> list[Frame]:
    (count,) = _COUNT.unpack_from(table)
    if count > MOST_FRAMES:
        raise ValueError(f"{count} tensors")
    at, frames = _COUNT.size, []
    for _ in range(count):
        name, dtype, dimensions = _LENGTHS.unpack_from(table, at)
        at += _LENGTHS.size
        if dtype > LONGEST_DTYPE or dimensions > MOST_DIMENSIONS:
            raise ValueError(f"a dtype of {dtype} bytes, {dimensions} dimensions")
        words = table[at : at + name + dtype]
        shape = struct.unpack_from(f"<{dimensions}Q", table, at := at + name + dtype)
        revision, digest = _TAIL.unpack_from(table, at := at + 8 * dimensions)
        at += _TAIL.size
        frames.append(Frame(words[:name].decode(), words[name:].decode(), shape, revision, digest))
    if at != len(table):
        raise ValueError(f"{len(table) - at} bytes too many")
    return frames
