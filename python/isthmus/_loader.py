"""Which files the C library's loader would load for a program, and which of them would serve a function.

The rules are those of ld.so(8) and dlopen(3) of glibc, applied to the files. Nothing is loaded.

1. An object that is loaded already serves every need for its SONAME.
2. Another need is looked for in this order: RPATH of the object and of the objects that led to it, LD_LIBRARY_PATH,
   RUNPATH, the loader's cache, the system's folders.
3. A preloaded library is searched for functions behind the program, and before all libraries that the program needs.

Folders for kinds of a processor (glibc-hwcaps) are left out.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import _elf

__all__ = ["Loaded", "Process", "cached"]

_TRIPLETS = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}
_PLATFORMS = {62: "x86_64", 183: "aarch64"}
Read = Callable[[Path], _elf.Elf]


@dataclass(eq=False)
class Loaded:
    """One object of a process: the program or a shared library."""

    elf: _elf.Elf
    parent: Loaded | None  # the object that needs this one, or opened it
    names: set[str]  # the names under which other objects find this one
    everybodys: bool  # whether all objects find this one's functions (global scope); else those opened together with it


@dataclass
class Process:
    """A program, the preloaded libraries, and the libraries that these need.

    `replace` stands for the loader's auditor: from a name that is asked for, the name that is taken instead, or None.
    """

    program: _elf.Elf
    environment: Mapping[str, str]
    read: Read
    preload: tuple[Path, ...] = ()
    replace: Callable[[str], str | None] = lambda name: None
    objects: list[Loaded] = field(default_factory=list)
    missing: list[tuple[str, Path]] = field(default_factory=list)  # a name that no file was found for, and who needs it

    def __post_init__(self) -> None:
        first = [Loaded(self.program, None, {str(self.program.path)}, True)]
        first += [self._loaded(path, None, str(path)) for path in self.preload]
        self.objects += first
        self._needed_of(first, True)

    def open(self, name: str, by: Loaded | None = None, everybodys: bool = False) -> Loaded | None:
        """Loads a library and all that the library needs, as dlopen does. None: there is no such library.

        `by` is the object that calls dlopen, the program by default. `everybodys` is RTLD_GLOBAL.
        """
        before = len(self.objects)
        found = self._get(name, by or self.objects[0], everybodys)
        if found:
            self._needed_of(self.objects[before:], everybodys)
        return found

    def binding(self, name: str, of: Loaded) -> Loaded | None:
        """The object that serves `of`'s calls of the function `name`. None: no object has the function.

        The global scope is searched first, then the objects that were opened together with `of`.
        """
        everybodys = [o for o in self.objects if o.everybodys]
        for candidate in (*everybodys, *self._with(of)):
            if name in candidate.elf.defined:
                return candidate
        return None

    def _with(self, first: Loaded) -> Iterator[Loaded]:
        while first.parent and not first.parent.everybodys:
            first = first.parent
        seen, queue = set(), [first]
        while queue:
            here = queue.pop(0)
            if id(here) not in seen:
                seen.add(id(here))
                yield here
                queue += [o for need in here.elf.needed if (o := self._answering(self._asked(need)))]

    def _needed_of(self, queue: list[Loaded], everybodys: bool) -> None:
        queue = list(queue)
        while queue:
            here = queue.pop(0)
            for need in here.elf.needed:
                before = len(self.objects)
                if self._get(need, here, everybodys) is None:
                    self.missing.append((need, here.elf.path))
                queue += self.objects[before:]

    def _asked(self, name: str) -> str:
        return self.replace(name) or name

    def _answering(self, name: str) -> Loaded | None:
        return next((o for o in self.objects if name in o.names), None)

    def _get(self, name: str, by: Loaded, everybodys: bool) -> Loaded | None:
        name = self._asked(name)
        known = self._answering(name)
        if known:
            return known
        path = self._find(name, by)
        if path is None:
            return None
        same = next((o for o in self.objects if o.elf.path.exists() and path.samefile(o.elf.path)), None)
        if same:
            same.names.add(name)
            return same
        found = self._loaded(path, by, name)
        found.everybodys = everybodys
        self.objects.append(found)
        return found

    def _loaded(self, path: Path, parent: Loaded | None, name: str) -> Loaded:
        elf = self.read(path)
        return Loaded(elf, parent, {name, str(path), *([elf.soname] if elf.soname else [])}, True)

    def _find(self, name: str, by: Loaded) -> Path | None:
        places: Iterator[Path]
        if "/" in name:
            places = iter([Path(_expand(name, by.elf))])
        else:
            places = (Path(folder) / name for folder in self._folders(by))
        for place in places:
            if self._fits(place):
                return place.parent.resolve() / place.name
        if "/" not in name:
            for place in [*map(Path, _cache().get(name, ())), *(Path(folder) / name for folder in self._system())]:
                if self._fits(place):
                    return place
        return None

    def _folders(self, by: Loaded) -> Iterator[str]:
        if not by.elf.runpath:
            chain = [by]
            while chain[-1].parent:
                chain.append(chain[-1].parent)
            if self.objects and chain[-1] is not self.objects[0]:
                chain.append(self.objects[0])
            for ancestor in chain:
                for folder in ancestor.elf.rpath:
                    yield _expand(folder, ancestor.elf)
        for folder in re.split("[:;]", self.environment.get("LD_LIBRARY_PATH", "")):
            if folder:
                yield _expand(folder, by.elf)
        for folder in by.elf.runpath:
            yield _expand(folder, by.elf)

    def _system(self) -> list[str]:
        triplet = _TRIPLETS.get(self.program.machine, "")
        return [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]

    def _fits(self, path: Path) -> bool:
        """Whether the loader takes this file. The loader passes over objects of another machine.

        A file that is no ELF object is an error for the loader. Here such a file is passed over.
        """
        try:
            return path.is_file() and self.read(path).machine == self.program.machine
        except (OSError, _elf.NotElf):
            return False


def _expand(text: str, elf: _elf.Elf) -> str:
    triplet = _TRIPLETS.get(elf.machine, "")
    library = f"lib/{triplet}" if triplet and Path(f"/lib/{triplet}").is_dir() else "lib64"
    values = {"ORIGIN": str(elf.path.absolute().parent), "LIB": library, "PLATFORM": _PLATFORMS.get(elf.machine, "")}
    return re.sub(r"\$\{(\w+)\}|\$(ORIGIN|LIB|PLATFORM)", lambda m: values.get(m[1] or m[2], m[0]), text)


@functools.cache
def _cache(path: str = "/etc/ld.so.cache") -> dict[str, list[str]]:
    """The loader's cache, made by ldconfig: the paths of each name, in the cache's order."""
    found: dict[str, list[str]] = {}
    try:
        data = Path(path).read_bytes()
    except OSError:
        return found
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0:
        return found
    data = data[start:]
    try:
        (count,) = struct.unpack_from("<I", data, 20)
        for i in range(count):
            _, name, value = struct.unpack_from("<iII", data, 48 + 24 * i)
            key = data[name : data.index(b"\0", name)].decode(errors="replace")
            found.setdefault(key, []).append(data[value : data.index(b"\0", value)].decode(errors="replace"))
    except (struct.error, ValueError):
        return {}
    return found


def cached(name: str) -> list[str]:
    """The files of this name in the loader's cache."""
    return _cache().get(name, [])
