"""What a command runs, which parts of the program use a vendor's collective library, and where the parts' calls go.

The program's files are read, and the loader's rules are applied to the files. The program is not run. Only a Python
interpreter is run, to ask where its packages are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import _elf
from ._doors import DOORS, FOLDER, HOOK, Door, door_of_file, read
from ._errors import ArgumentError
from ._inside import library_inside
from ._loader import Loaded, Process

__all__ = ["VARIABLES", "VLLM_PATH", "WAYS", "Answer", "Program", "Python", "User", "answer", "examine", "python_users"]

# Programs that only start another program. The other program is looked at instead.
_WRAPPERS = ("env", "nice", "nohup", "timeout", "taskset", "numactl", "setsid", "stdbuf", "time", "ionice", "chrt")
# Programs that start another program in processes of their own. Those on this host have the variables. Those on other hosts
# have the variables only where the launcher is told so.
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prun", "srun", "jsrun", "aprun", "horovodrun")
# Programs that start another program in a place without these variables or this package's files, or as another user.
_ELSEWHERE = (
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "apptainer",
    "singularity",
    "ssh",
    "pdsh",
    "clush",
    "dsh",
    "pssh",
    "parallel-ssh",
    "sudo",
    "su",
    "doas",
    "chroot",
)
# Launchers that start the program on other hosts too, and take only some variables there. What to write instead.
_FROM_INSIDE = {
    "deepspeed": "deepspeed --no_python ... isthmus run -- python PROGRAM",
    "accelerate": "accelerate launch --no_python ... isthmus run -- python PROGRAM",
    "ray": "`import isthmus.interpose` as the first line of the task or actor, or of the runtime environment's setup hook",
}

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_ASK_PYTHON = "import json, sys; print(json.dumps([sys.executable, [p for p in sys.path if p]]))"
# Files of Python packages that may use a vendor's library, below a folder of packages.
_FILES = {
    "torch": ("torch/lib/libtorch_*.so", "torch/lib/libc10_*.so"),
    "torch_npu": ("torch_npu/lib/*.so",),
    "cupy": ("cupy_backends/cuda/libs/nccl*.so",),
    "jax": ("jax_plugins/*/*.so",),
    "tensorflow": ("tensorflow/libtensorflow_*.so*",),
    "nccl4py": ("nccl/core/**/*.so", "nccl/bindings/**/*.so"),
    "pyhccl": ("pyhccl/_C*.so",),
}
_LOAD_BY_PATH = ("torch", "cupy", "jax")
_PYNCCL = "vllm/distributed/device_communicators/pynccl_wrapper.py"
VLLM_PATH = "VLLM_NCCL_SO_PATH"
# The variables with the path of the library, by Python package. Where the file is not there, pyhccl reads a second variable
# with the library's folder.
VARIABLES = {"vllm": VLLM_PATH, "pyhccl": "PYHCCL_LIBRARY"}
_PYHCCL_FOLDER = "PYHCCL_LIBRARY_PATH"

WAYS = ("now", "preload", "hook", "import", "library_path", "audit")


@dataclass(frozen=True)
class User:
    """A part of a program that calls a vendor's functions."""

    name: str
    file: Path | None  # None: Python code that opens the library itself
    door: Door  # the vendor
    # "linked"; "name" or "path": the part opens the library by `text`; "inside": the file contains the library; "hidden": so
    # it does, and shows none of its functions
    how: str
    text: str = ""  # the name or the path
    functions: frozenset[str] = frozenset()  # the vendor's functions that the part calls or contains


@dataclass(frozen=True)
class Python:
    """A Python interpreter, and the folders of its packages (sys.path, in order)."""

    executable: Path
    folders: tuple[str, ...]

    def has(self, name: str) -> Path | None:
        """The first file or folder with this name below one of the folders of packages. None: there is none."""
        return next((Path(f) / name for f in self.folders if (Path(f) / name).exists()), None)


@dataclass
class Program:
    """What a command would run."""

    command: list[str]
    environment: dict[str, str]  # with the variables that `env` in the command adds
    executable: Path
    elf: _elf.Elf
    script: Path | None = None
    launcher: str = ""
    python: Python | None = None
    users: list[User] = field(default_factory=list)
    unreachable: str = ""  # why no variable can lead the program to a door; empty: one can
    own: bool = False  # whether the program is linked against libisthmus, and so is a program of Isthmus itself


@dataclass(frozen=True)
class Answer:
    """Where the calls of one User would go."""

    library: Path | None  # the one library that serves all calls. None: no library, or several, which `functions` names
    leads: bool  # whether that library is the door
    functions: dict[str, str]  # the library of each function; an empty text: no library has the function


def examine(command: Sequence[str], environment: Mapping[str, str]) -> Program:
    """Says what a command would run. Raises ArgumentError where the command names no program that can be examined."""
    if not command:
        raise ArgumentError("no program; write it after --")
    words, variables, launcher = _innermost(list(command), dict(environment))
    executable, script = _resolve(words[0], variables)
    python = None
    if _PYTHON.fullmatch(executable.name) or (script and _PYTHON.fullmatch(script.name)):
        # A script named like Python finds the interpreter, as the scripts of pyenv do.
        python = _ask_python(
            executable if _PYTHON.fullmatch(executable.name) else script or executable, script, words, variables
        )
        executable = python.executable
    try:
        elf = read(executable)
    except _elf.NotElf as error:
        raise ArgumentError(f"{error}, and no script that begins with #!") from None
    except OSError as error:
        raise ArgumentError(f"{executable}: {error.strerror}") from None
    program = Program(list(command), variables, executable, elf, script, launcher)
    if _privileged(executable):
        program.unreachable = (
            f"{executable} is set-uid or set-gid, or has capabilities: the loader leaves out what it is told there"
        )
    elif elf.static_program:
        program.unreachable = f"{executable} is linked statically: no loader is asked for its functions"
    if python:
        program.python = python
        program.users = python_users(python, variables)
    elif not elf.static_program:
        loaded = Process(program.elf, program.environment, read).objects
        program.own = any(_is_own(one.elf.path, one.elf) for one in loaded)
        program.users = _linked_users(loaded)
    else:
        program.users = _of_file("the program", executable, elf)
    return program


def _innermost(words: list[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str], str]:
    """The words behind env, nice and the like; the variables, with those that env sets; the launcher's name, or ""."""
    while words:
        name = os.path.basename(words[0])
        if name in _ELSEWHERE:
            raise ArgumentError(
                f"{name} starts the program where these variables do not count; put it the other way round: "
                f"{name} ... isthmus run -- PROGRAM"
            )
        if name in _FROM_INSIDE:
            raise ArgumentError(
                f"{name} starts processes, on other hosts too, without these variables; lead each of them to the door: "
                f"{_FROM_INSIDE[name]}"
            )
        if name in _LAUNCHERS:
            return words, variables, name
        if name not in _WRAPPERS:
            break
        rest = words[1:]
        while rest:
            pair = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)
            if name == "env" and pair:
                variables[pair[1]] = pair[2]
            elif shutil.which(rest[0], path=variables.get("PATH", os.defpath)):
                break
            rest.pop(0)
        if not rest:
            break
        words = rest
    return words, variables, ""


def _resolve(word: str, variables: Mapping[str, str]) -> tuple[Path, Path | None]:
    """The file that the kernel would run for a word, and the script whose first line led to the file, or None."""
    script = None
    for _ in range(5):
        found = shutil.which(word, path=variables.get("PATH", os.defpath))
        if found is None:
            place = Path(word)
            if "/" not in word or not place.exists():
                raise ArgumentError(f"{word}: there is no such program")
            raise ArgumentError(f"{word}: is {'a folder' if place.is_dir() else 'not executable'}")
        path = Path(found).absolute()
        try:
            with open(path, "rb") as file:
                line = file.read(1024).split(b"\n")[0]
        except OSError as error:
            raise ArgumentError(f"{path}: {error.strerror}") from None
        if not line.startswith(b"#!"):
            return path, script
        script = script or path
        interpreter = line[2:].decode(errors="replace").split()
        if interpreter and os.path.basename(interpreter[0]) == "env":
            interpreter = [part for part in interpreter[1:] if not part.startswith("-") and "=" not in part]
        if not interpreter:
            raise ArgumentError(f"{path}: its first line names no interpreter")
        word = interpreter[0]
    raise ArgumentError(f"{script}: interpreters of interpreters without an end")


def _privileged(executable: Path) -> bool:
    """Whether the loader distrusts the environment, because the program would run with other rights than this process."""
    status = executable.stat()
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(executable, "security.capability"))
    except OSError:
        return False


# ---- who uses a vendor's library -----------------------------------------------------------------------------------------


def _ask_python(executable: Path, script: Path | None, words: list[str], variables: Mapping[str, str]) -> Python:
    plain = {name: value for name, value in variables.items() if name not in ("LD_PRELOAD", "LD_AUDIT")}
    try:
        ended = subprocess.run(
            [str(executable), "-c", _ASK_PYTHON],
            env=plain, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        interpreter, folders = json.loads(ended.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        raise ArgumentError(f"{executable}: does not say where its packages are (sys.path)") from None
    given = (
        script if script and script != executable else next((Path(word) for word in words[1:] if word.endswith(".py")), None)
    )
    first = [str(given.absolute().parent)] if given else [os.getcwd()]
    return Python(Path(interpreter), searchable(dict.fromkeys([*first, *folders])))


def searchable(folders: Iterable[str]) -> tuple[str, ...]:
    """Those that may be looked into. Python passes over the others; pathlib raises, before 3.14."""
    return tuple(folder for folder in folders if os.access(folder, os.R_OK | os.X_OK))


def python_users(python: Python, environment: Mapping[str, str]) -> list[User]:
    """The Python packages that may load a vendor's library. Whether a program imports the packages is not looked at."""
    users = []
    for name, patterns in _FILES.items():
        for folder in python.folders:
            files = [file for pattern in patterns for file in sorted(Path(folder).glob(pattern))]
            for file in files:
                users += _of_path(name, file)
            if files:
                break
    users = [_told_by_variables(user, environment) if user.name == "pyhccl" else user for user in users]
    wrapper = python.has(_PYNCCL)
    if wrapper:
        door = next((user.door for user in users if user.name == "torch"), DOORS["nccl"])
        path = environment.get(VLLM_PATH, "")
        users.append(User("vllm", None, door, "path" if "/" in path else "name", path or door.soname))
    return users


def _told_by_variables(user: User, environment: Mapping[str, str]) -> User:
    """pyhccl, with the library that pyhccl would open. pyhccl opens the first of these that exists:

    1. the file that PYHCCL_LIBRARY names;
    2. the library in the folder that PYHCCL_LIBRARY_PATH names;
    3. the library's name, which the loader looks for.
    """
    folder = environment.get(_PYHCCL_FOLDER, "")
    for path in (environment.get(VARIABLES[user.name], ""), f"{folder}/{user.door.soname}" if folder else ""):
        if "/" in path and _readable(Path(path)):
            return replace(user, how="path", text=path)
    return user


def _linked_users(objects: Sequence[Loaded]) -> list[User]:
    users = []
    for loaded in objects:
        if _serves_a_vendors(loaded):
            continue
        name = "the program" if loaded.parent is None else loaded.elf.path.name
        users += _of_file(name, loaded.elf.path, loaded.elf)
    return users


def _serves_a_vendors(loaded: Loaded) -> bool:
    """Whether a vendor's library led to this object. HCCL is such a library: its functions are in several files."""
    above = loaded.parent
    while above:
        if door_of_file(above.elf.path, above.elf.soname):
            return True
        above = above.parent
    return False


def _is_own(file: Path, elf: _elf.Elf) -> bool:
    """Whether the file is libisthmus. libisthmus opens the vendors' libraries for its islands, and needs no door."""
    return (elf.soname or file.name).startswith("libisthmus.so")


def _of_path(name: str, file: Path) -> list[User]:
    try:
        return _of_file(name, file, read(file))
    except (OSError, _elf.NotElf):
        return []


def _of_file(name: str, file: Path, elf: _elf.Elf) -> list[User]:
    """How a file uses the vendors' libraries, one User for each vendor.

    A file is linked against the library, contains the library, or opens the library by a text that stands in the file.
    """
    if elf.is_door or door_of_file(file, elf.soname) or _is_own(file, elf):
        return []  # the file is a library, and no user of one
    linked = {door.library: door for need in elf.needed if (door := door_of_file(need))}
    users = []
    for door in linked.values():
        functions = frozenset(f for f in elf.wanted if door.functions.match(f))
        users.append(User(name, file, door, "linked", functions=functions))
    for door in (_of_nccl_like(elf), DOORS["hccl"]):
        own = frozenset(f for f in elf.defined if door.functions.match(f))
        if len(own) >= 8 and door.library not in linked:
            users.append(User(name, file, door, "inside", functions=own))
    hidden = None if users else library_inside(file, elf)
    if hidden:
        return [User(name, file, hidden, "hidden")]
    # PyTorch's files, of half a gigabyte, are linked and need no search.
    if users or name == "torch" or not elf.wanted & {"dlopen", "dlmopen"}:
        return users
    for door in DOORS.values():
        text = _elf.mentions(file, door.stem)
        if text:
            users.append(User(name, file, door, "path" if "/" in text else "name", text))
    if not users:  # XLA puts the library's name together from parts, but has the functions' names whole
        for function, door in (("ncclGetUniqueId", _of_nccl_like(elf)), ("HcclGetRootInfo", DOORS["hccl"])):
            if _elf.mentions(file, function):
                users.append(User(name, file, door, "name", door.soname))
    return users


def _of_nccl_like(elf: _elf.Elf) -> Door:
    """NCCL's door or RCCL's. Their functions have the same names, so the other libraries that the file needs decide."""
    return DOORS["rccl" if any(need.startswith("libamdhip64") for need in elf.needed) else "nccl"]


# ---- where their calls go ------------------------------------------------------------------------------------------------


def answer(program: Program, user: User, way: str, door: Door, alone: bool = False) -> Answer:
    """Where the user's calls go, as the environment is now (`way` "now") or with one of WAYS to this door.

    Some Python packages (_LOAD_BY_PATH) first load the library of the vendor's own package by its path. The linked parts
    then use that library. With `alone` that step is left out, as the packages do where a door is loaded already.
    """
    environment, preload, replace = dict(program.environment), _preloaded(program), _nothing
    if way in ("preload", "hook") and not re.search("[: ]", str(FOLDER)):  # where the loader takes the variable apart
        preload = [door.path, *([HOOK] if way == "hook" else []), *preload]
    if way == "library_path":
        environment["LD_LIBRARY_PATH"] = f"{FOLDER}:{environment.get('LD_LIBRARY_PATH', '')}"
    if way == "audit":
        replace = _to_doors
    if program.unreachable and way != "now":
        preload, replace = [], _nothing
    process = Process(program.elf, environment, read, tuple(preload), replace)
    if way == "import":
        process.open(str(door.path), everybodys=True)
    here = process.objects[0]
    if program.python and user.name in _LOAD_BY_PATH and not alone:
        first = next((path for name in door.packages if (path := program.python.has(f"{name}/{door.soname}"))), None)
        if first:
            process.open(str(first))
    if user.file is not None and user.file != program.executable:
        here = process.open(str(user.file)) or here
    hooked = any(read(path).soname == HOOK.name for path in preload)
    if user.how == "linked":
        return _bound(process, here, user.functions, door)
    if user.how in ("inside", "hidden"):
        return Answer(user.file, False, dict.fromkeys(sorted(user.functions), str(user.file)))
    asked = user.text
    if hooked:
        asked = _to_doors(asked) or asked
    opened = process.open(asked, here)
    library = opened.elf.path if opened else None
    return Answer(library, library == door.path, {})


def _nothing(name: str) -> str | None:
    return None


def _to_doors(name: str) -> str | None:
    """The path of the door for a library's name or path, or None, decided as in csrc/interpose/ways/door.cpp."""
    door = door_of_file(name)
    if door is None and "/" in name and os.path.isfile(name):
        try:
            door = door_of_file(read(name).soname)
        except (OSError, _elf.NotElf):
            return None
    if door is None or not door.path.exists() or ("/" in name and not os.path.exists(name)):
        return None
    return str(door.path)


def _preloaded(program: Program) -> list[Path]:
    parts = [Path(part) for part in re.split("[: ]", program.environment.get("LD_PRELOAD", "")) if "/" in part]
    return [part for part in parts if _readable(part)]


def _readable(path: Path) -> bool:
    try:
        return bool(read(path))
    except (OSError, _elf.NotElf):
        return False


def _bound(process: Process, here: Loaded, functions: frozenset[str], door: Door) -> Answer:
    found = {name: process.binding(name, here) for name in sorted(functions)}
    libraries = {loaded.elf.path for loaded in found.values() if loaded}
    if not functions:  # the file is linked against the library and calls none of its functions
        needed = next((process.open(need, here) for need in here.elf.needed if door_of_file(need)), None)
        libraries = {needed.elf.path} if needed else set()
    library = next(iter(libraries)) if len(libraries) == 1 else None
    leads = library == door.path and all(found.values())
    return Answer(library, leads, {name: str(loaded.elf.path) if loaded else "" for name, loaded in found.items()})
