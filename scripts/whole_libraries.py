#!/usr/bin/env python3
"""Puts whole libraries of other people's into the folder that is given. tests/interpose runs them without a device.

  torch-cuda   PyTorch for CUDA with all that it needs, as pip installs it. 3 GB are fetched, 5.4 GB kept.
  rccl         Debian's RCCL and HIP's runtime with all that they need, down to the C library, so that they run on any Linux
               by the loader that is there. 178 MB are fetched, 540 MB kept.

    whole_libraries.py FOLDER             both
    whole_libraries.py FOLDER rccl        that one

They are large, and fetched on demand. Nothing is installed into the system: apt-get fetches with lists of its own, which are
deleted, and looks at the signatures. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# ===: not a build for one machine of the same version.
TORCH = "torch===2.14.1"
RCCL, RELEASE = "librccl1", "trixie"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIBRARIES = "usr/lib/x86_64-linux-gnu"  # below the folder of Debian's


class NotHere(Exception):
    """This machine cannot fetch it: nobody answers, or there is no apt-get."""


def said(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in words]
    return subprocess.run(command, env=os.environ | more, text=True, capture_output=True, stdin=subprocess.DEVNULL)


def well(*words: str | Path) -> None:
    ended = said(*words)
    if ended.returncode != 0:
        raise SystemExit(f"whole_libraries: {words[0]} gave {ended.returncode}: {(ended.stdout + ended.stderr)[-2000:]}")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def take_torch(folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--retries", "2")
    ended = said(*pip, "--target", folder, TORCH)
    if "connection broken" in ended.stderr or "Max retries exceeded" in ended.stderr:
        raise NotHere(f"no index of packages can be reached: {last_line(ended.stderr)}")
    if ended.returncode != 0:
        raise SystemExit(f"whole_libraries: pip gave {ended.returncode}: {ended.stderr[-2000:]}")


def mirror() -> str:
    """Where this system's apt-get takes Debian's packages from."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))) or not Path(KEYS).is_file():
        raise NotHere("this system has no packages of Debian's")
    told = said("apt-get", "indextargets", "--format", "$(SITE) $(ORIGIN) $(COMPONENT) $(LABEL)", "Created-By: Packages")
    for line in told.stdout.splitlines():
        if line.split()[1:] == ["Debian", "main", "Debian"]:
            return line.split()[0]
    raise NotHere("apt-get names no mirror of Debian's: its lists may be missing (apt-get update)")


def take_rccl(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        here, sources = Path(place), Path(place) / "sources.list"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (here / name).mkdir(parents=True)
        sources.write_text(f"deb [signed-by={KEYS}] {mirror()} {RELEASE} main\n")
        settings = {"Dir::State": here / "state", "Dir::Cache": here / "cache", "Dir::Etc::sourcelist": sources}
        # As a system on which nothing is installed, so that all that it needs is fetched.
        settings |= {"Dir::Etc::sourceparts": Path("/dev/null"), "Dir::State::status": Path("/dev/null")}
        apt = ["apt-get", "-qq", "-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=root"]
        apt += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        updated = said(*apt, "-o", "APT::Update::Error-Mode=any", "update")
        if updated.returncode != 0:
            raise NotHere(f"no mirror of Debian's can be reached: {last_line(updated.stderr)}")
        well(*apt, "--yes", "--no-install-recommends", "--download-only", "install", RCCL)
        for package in sorted((here / "cache" / "archives").glob("*.deb")):
            well("dpkg-deb", "-x", package, folder)


PIECES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "torch-cuda": (take_torch, ("torch/lib/libtorch_cuda.so", "nvidia/nccl/lib/libnccl.so.2")),
    "rccl": (take_rccl, tuple(f"{LIBRARIES}/{name}" for name in ("librccl.so.1", "libamdhip64.so.5", "libc.so.6"))),
}


def assemble(folder: Path, name: str) -> Path:
    """Where it is, fetched if it is not there yet. Raises NotHere."""
    take, needed = PIECES[name]
    place, part = folder / name, folder / f"{name}.part"
    if place.is_dir():
        return place
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    take(part)
    if missing := [file for file in needed if not (part / file).is_file()]:
        raise SystemExit(f"whole_libraries: what was fetched for {name} no longer holds {', '.join(missing)}")
    return part.rename(place)  # so a fetch that was cut short is begun anew


if __name__ == "__main__":
    if len(sys.argv) < 2 or any(name not in PIECES for name in sys.argv[2:]):
        raise SystemExit(f"usage: whole_libraries.py FOLDER [{'|'.join(PIECES)}]...")
    try:
        print(*(assemble(Path(sys.argv[1]), name) for name in sys.argv[2:] or PIECES), sep="\n")
    except NotHere as no:
        raise SystemExit(f"whole_libraries: {no}") from None
