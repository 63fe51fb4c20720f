"""Reads what the loader reads of an executable or a shared library. Nothing is run."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Elf", "NotElf", "constants_with", "mentions", "read"]

_DYN = 3  # e_type of shared libraries, and of executables that can be loaded at any address
_LOAD, _DYNAMIC, _INTERP, _NOTE = 1, 2, 3, 4
_PROGBITS = 1  # a section with bytes in the file
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_GNU_HASH = 0x6FFFFEF5
_WRITABLE = 2  # of a program header's flags
_MOST_CONSTANTS = 256 << 20  # so many bytes of a file's constants are searched


class NotElf(ValueError):
    """The file is no 64-bit ELF object, or is cut off."""


@dataclass(frozen=True)
class Elf:
    """One executable or shared library."""

    path: Path
    machine: int  # e_machine
    position_independent: bool
    interpreter: str  # the loader that a program asks for; empty for a library, and for a statically linked program
    dynamic: bool  # whether the object has a dynamic section, which is what the loader reads
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]  # as written, with $ORIGIN; empty where there is a RUNPATH, because the loader takes that instead
    runpath: tuple[str, ...]
    is_door: bool  # whether the object is one of Isthmus' front doors, or a copy of one
    defined: frozenset[str]  # symbols that the object has, of those that the reader asked for
    wanted: frozenset[str]  # symbols that the object takes from others, of those that the reader asked for

    @property
    def static_program(self) -> bool:
        return not self.interpreter and not (self.dynamic and self.soname) and not self.needed


def read(path: str | Path, names: tuple[bytes, ...] = ()) -> Elf:
    """Reads the file, and keeps the symbols that begin with one of `names`. Raises OSError and NotElf."""
    with open(path, "rb") as file:
        try:
            image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise NotElf(f"{path} is empty") from None
        with image:
            try:
                return _Reader(Path(path), image).read(names)
            except NotElf:
                raise
            except (struct.error, ValueError, OverflowError, MemoryError):
                raise NotElf(f"{path} is cut off, or no ELF object in truth") from None


def mentions(path: str | Path, text: str) -> str:
    """The first word in the file that ends with `text`, or with `text` and a version. Empty: there is no such word."""
    with open(path, "rb") as file:
        try:
            image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            return ""
        with image:
            at = -1
            while (at := image.find(text.encode(), at + 1)) >= 0:
                begin, end = max(0, at - 4096), image.find(b"\0", at)
                before = re.search(rb"[ -~]*\Z", image[begin:at])
                whole = (before[0] if before else b"") + image[at : end if end >= 0 else at]
                if re.fullmatch(rb"[!-~]*" + re.escape(text.encode()) + rb"(\.[0-9]+)*", whole):
                    return whole.decode()
    return ""


def constants_with(path: str | Path, patterns: Sequence[bytes]) -> list[bytes]:
    """The first match of each pattern in the file's constants. Empty: not all match, or the file is no ELF object.

    Raises OSError. The constants are the sections .rodata, or all that is loaded read-only where the file names no sections.
    Code for devices, which may have gigabytes, is in sections of its own.
    """
    found: list[bytes] = []
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
                spans = _Reader(Path(path), image).constants()
                for pattern in map(re.compile, patterns):
                    text = next((m[0] for begin, end in spans if (m := pattern.search(image, begin, end))), None)
                    if text is None:
                        return []
                    found.append(text)
        except (NotElf, ValueError, struct.error, OverflowError):
            return []
    return found


def _occurrences(text: bytes, part: bytes) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


class _Reader:
    def __init__(self, path: Path, image: mmap.mmap) -> None:
        self.path, self.image = path, image
        if image[:4] != b"\x7fELF":
            raise NotElf(f"{path} is no ELF object")
        if image[4:6] != b"\x02\x01":
            raise NotElf(f"{path} is not of a 64-bit, little-endian machine")
        self.type, self.machine = struct.unpack_from("<HH", image, 16)
        (start,) = struct.unpack_from("<Q", image, 32)
        size, count = struct.unpack_from("<HH", image, 54)
        if count and size != 56:
            raise NotElf(f"{path} has program headers of {size} bytes, not 56")
        # type, flags, offset, virtual address, physical address, bytes in the file, bytes in memory, alignment
        self.headers = [struct.unpack_from("<IIQQQQQQ", image, start + i * size) for i in range(count)]

    def read(self, names: tuple[bytes, ...]) -> Elf:
        tags = list(self.tags())
        by_tag = dict(tags)
        texts = self.offset(by_tag[_STRTAB]) if _STRTAB in by_tag else 0

        def folders(tag: int) -> tuple[str, ...]:
            return tuple(part for part in self.text(texts + by_tag[tag]).split(":") if part) if tag in by_tag else ()

        defined, wanted = self.symbols(by_tag, texts, names) if names else (frozenset[str](), frozenset[str]())
        interpreter = next((self.text(h[2]) for h in self.headers if h[0] == _INTERP), "")
        runpath = folders(_RUNPATH)
        return Elf(
            self.path,
            self.machine,
            self.type == _DYN,
            interpreter,
            bool(tags),
            self.text(texts + by_tag[_SONAME]) if _SONAME in by_tag else "",
            tuple(self.text(texts + value) for tag, value in tags if tag == _NEEDED),
            () if _RUNPATH in by_tag else folders(_RPATH),
            runpath,
            self.has_our_note(),
            defined,
            wanted,
        )

    def tags(self) -> Iterator[tuple[int, int]]:
        for header in self.headers:
            if header[0] == _DYNAMIC:
                for at in range(header[2], header[2] + header[5], 16):
                    tag, value = struct.unpack_from("<qQ", self.image, at)
                    if tag == 0:
                        return
                    yield tag, value

    def constants(self) -> list[tuple[int, int]]:
        """Where the file's constants begin and end, up to _MOST_CONSTANTS bytes together."""
        spans = self.rodata() or [
            (h[2], h[2] + h[5]) for h in self.headers if h[0] == _LOAD and not h[1] & _WRITABLE and h[5] > 0
        ]
        left, kept = _MOST_CONSTANTS, []
        for begin, end in spans:
            end = min(end, len(self.image), begin + left)
            if begin < end:
                kept.append((begin, end))
                left -= end - begin
        return kept

    def rodata(self) -> list[tuple[int, int]]:
        (table,) = struct.unpack_from("<Q", self.image, 40)
        size, count, names = struct.unpack_from("<HHH", self.image, 58)
        if not table or size != 64 or names >= count:
            return []
        # name, type, flags, address, offset, bytes; then four more
        sections = [struct.unpack_from("<IIQQQQ", self.image, table + i * size) for i in range(count)]
        texts = sections[names][4]
        wanted = re.compile(r"\.l?rodata(\..*)?")
        return [(s[4], s[4] + s[5]) for s in sections if s[1] == _PROGBITS and wanted.fullmatch(self.text(texts + s[0]))]

    def offset(self, address: int) -> int:
        for kind, _, offset, start, _, in_file, _, _ in self.headers:
            if kind == _LOAD and start <= address < start + in_file:
                return int(offset + address - start)
        raise NotElf(f"{self.path} has a table outside of what is loaded")

    def text(self, offset: int) -> str:
        end = self.image.find(b"\0", offset)
        if end < 0 or offset > len(self.image):
            raise NotElf(f"{self.path} is cut off")
        return self.image[offset:end].decode(errors="replace")

    def symbols(self, tags: dict[int, int], texts: int, names: tuple[bytes, ...]) -> tuple[frozenset[str], frozenset[str]]:
        if _SYMTAB not in tags or _STRSZ not in tags:
            return frozenset(), frozenset()
        table, count = self.offset(tags[_SYMTAB]), self.symbol_count(tags)
        all_texts = self.image[texts : texts + tags[_STRSZ]]
        # A symbol's name may be the end of another text, so the names are looked for everywhere in the texts. The table may
        # have half a million symbols; only the few whose name begins at one of `starts` are looked at.
        starts = {at for name in names for at in _occurrences(all_texts, name)}
        defined: set[str] = set()
        wanted: set[str] = set()
        symbols = self.image[table : table + 24 * count] if starts else b""
        for at, info, other, section, _, _ in struct.iter_unpack("<IBBHQQ", symbols):
            if at in starts and info >> 4 in (1, 2, 10) and other & 3 in (0, 3):  # global, weak or unique, and not hidden
                (defined if section else wanted).add(all_texts[at : all_texts.index(b"\0", at)].decode(errors="replace"))
        return frozenset(defined), frozenset(wanted)

    def symbol_count(self, tags: dict[int, int]) -> int:
        if _HASH in tags:
            return int(struct.unpack_from("<I", self.image, self.offset(tags[_HASH]) + 4)[0])
        if _GNU_HASH not in tags:
            return 0
        at = self.offset(tags[_GNU_HASH])
        buckets, first, blooms, _ = struct.unpack_from("<IIII", self.image, at)
        start = at + 16 + 8 * blooms
        last = max(struct.unpack_from(f"<{buckets}I", self.image, start), default=0)
        if last < first:  # the object exports nothing. The symbols that the object wants stand before `first`
            return int(first)
        chains = start + 4 * buckets
        while struct.unpack_from("<I", self.image, chains + 4 * (last - first))[0] & 1 == 0:
            last += 1
        return int(last + 1)

    def has_our_note(self) -> bool:
        for header in self.headers:
            if header[0] == _NOTE:
                at, end = header[2], header[2] + header[5]
                while at + 12 <= end:
                    name, description, _ = struct.unpack_from("<III", self.image, at)
                    if self.image[at + 12 : at + 12 + name] == b"Isthmus\0":
                        return True
                    at += 12 + (name + 3 & ~3) + (description + 3 & ~3)
        return False
