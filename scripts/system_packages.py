"""The system packages that Isthmus builds and tests with.

They are found by what they provide, so a machine that has them by other means is left alone. Installs what is missing where
that is permitted (root, or sudo without a password, and apt-get); elsewhere says what to install, and how.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

INCLUDE = [Path(p) for p in os.environ.get("CPLUS_INCLUDE_PATH", "").split(":") if p] + [
    Path("/usr/local/include"),
    Path("/usr/include"),
]


@dataclass(frozen=True)
class Package:
    name: str  # Debian's and Ubuntu's
    found: Callable[[], bool]
    what: str
    optional: bool = False  # nothing stops without it


def command(*names: str) -> bool:
    return any(shutil.which(name) for name in names)


def header(name: str) -> bool:
    return any((place / name).is_file() for place in INCLUDE)


def library(name: str) -> bool:
    return any(Path(p).is_file() for d in ("/usr/lib", "/usr/local/lib") for p in Path(d).glob(f"**/lib{name}.*"))


def python_headers() -> bool:
    return (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()


def python_venv() -> bool:
    return subprocess.run([sys.executable, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0


def of_python(suffix: str) -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}-{suffix}"


BUILD = (
    Package("g++", partial(command, "c++", "g++"), "C++20 compiler"),
    Package("cmake", partial(command, "cmake"), "build"),
    Package("ninja-build", partial(command, "ninja"), "build"),
    Package(of_python("dev"), python_headers, "the headers of this Python"),
    Package(of_python("venv"), python_venv, "virtual environments of this Python"),
    Package("libfmt-dev", partial(header, "fmt/format.h"), "text of messages"),
    Package("libspdlog-dev", partial(header, "spdlog/spdlog.h"), "log"),
    Package("nlohmann-json3-dev", partial(header, "nlohmann/json.hpp"), "JSON"),
    Package("libhwy-dev", partial(header, "hwy/highway.h"), "SIMD"),
    Package("libcli11-dev", partial(header, "CLI/CLI.hpp"), "command line of isthmus-bench"),
    Package("ccache", partial(command, "ccache"), "what was compiled once, in any folder, is not compiled again", True),
)
TEST = (
    Package("libgtest-dev", partial(header, "gtest/gtest.h"), "C++ tests"),
    Package("clang", partial(command, "clang++"), "a look at who holds which lock"),
    Package("git", partial(command, "git"), "which files are the project's"),
    Package("binutils", partial(command, "readelf"), "a look into the built library", True),
    Package("libucx0", partial(library, "ucp"), "the bridge ucx"),
    Package("libucx-dev", partial(header, "ucp/api/ucp.h"), "UCX's declarations, compared with ours"),
)
ALL = (
    Package(
        "googletest", partial(Path.is_file, Path("/usr/src/googletest/CMakeLists.txt")), "C++ tests on AArch64, from source"
    ),
    Package("g++-aarch64-linux-gnu", partial(command, "aarch64-linux-gnu-g++"), "cross build for AArch64"),
    Package("qemu-user-static", partial(command, "qemu-aarch64-static", "qemu-aarch64"), "AArch64 tests"),
    Package("clang-tidy", partial(command, "clang-tidy"), "faults that the compiler does not see"),
    Package("valgrind", partial(command, "valgrind"), "how many instructions a sum takes"),
)
DOCS = tuple(package for package in BUILD if package.name == of_python("venv"))
PROFILES = {"docs": DOCS, "build": BUILD, "test": BUILD + TEST, "test-all": BUILD + TEST + ALL}


def missing(profile: str) -> list[Package]:
    return [package for package in PROFILES[profile] if not package.found()]


def privilege() -> Sequence[str] | None:
    """The words before apt-get, or None where this user may not install packages."""
    if not command("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if (
        command("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def provide(profile: str) -> None:
    absent = missing(profile)
    if not absent:
        return
    names = [package.name for package in absent]
    before = privilege()
    if before is None:
        for package in absent:
            print(f"  {package.name:24} {package.what}{' (optional)' if package.optional else ''}")
        if all(package.optional for package in absent):
            return
        debian = f"\n  sudo apt-get install --no-install-recommends {' '.join(names)}" if command("apt-get") else ""
        named = "" if debian else " (the names are Debian's)"
        raise SystemExit(
            f"setup: the packages above are missing{named}. Install them, then try again{':' if debian else '.'}{debian}"
        )
    print(f"setup: installing {' '.join(names)} ...", flush=True)
    apt = [*before, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    update = subprocess.run([*apt, "update"], stdin=subprocess.DEVNULL, text=True, capture_output=True)
    install = subprocess.run(
        [*apt, "install", "--no-install-recommends", *names], stdin=subprocess.DEVNULL, text=True, capture_output=True
    )
    absent = [package for package in missing(profile) if not package.optional]
    if install.returncode != 0:
        print(update.stderr, install.stdout, install.stderr, sep="\n")
        if absent:
            raise SystemExit(f"setup: apt-get could not install {' '.join(names)}")
        print(f"setup: goes on without {' '.join(names)}", flush=True)
    if absent:
        raise SystemExit(
            f"setup: apt-get installed {' '.join(names)}, but still not found: {' '.join(p.name for p in absent)}"
        )


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) == 2 and sys.argv[1] in PROFILES else "test"
    print(" ".join(package.name for package in missing(wanted)) or f"all system packages of '{wanted}' are here")
