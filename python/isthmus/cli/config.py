"""`isthmus-config`: what a compiler, pkg-config or CMake is told, so that a C program finds the header and the library."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import __version__, get_include
from .._package import FOLDER


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="isthmus-config", description="cc program.c $(isthmus-config --cflags --libs) -o program"
    )
    parser.add_argument("--cflags", action="store_true", help="where isthmus/isthmus.h is")
    parser.add_argument("--libs", action="store_true", help="how to link with libisthmus")
    parser.add_argument("--cmakedir", action="store_true", help="for CMAKE_PREFIX_PATH: find_package(isthmus)")
    parser.add_argument("--pkgconfigdir", action="store_true", help="for PKG_CONFIG_PATH: pkg-config isthmus")
    parser.add_argument("--docs", action="store_true", help="where the documentation is")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    words = []
    if options.cflags:
        words.append(f"-I{get_include()}")
    if options.libs:
        words.append(f"-L{FOLDER} -listhmus -Wl,-rpath,{FOLDER}")
    if options.cmakedir:
        words.append(str(FOLDER / "cmake"))
    if options.pkgconfigdir:
        words.append(str(FOLDER / "pkgconfig"))
    if options.docs:
        words.append(str(FOLDER / "docs"))
    if not words:
        parser.error("say --cflags, --libs, --cmakedir, --pkgconfigdir or --docs")
    print(" ".join(words))
    return 0
