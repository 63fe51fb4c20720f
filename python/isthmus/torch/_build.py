"""Loads the extension module, or says why it cannot be loaded and what to do."""

from __future__ import annotations

import importlib
from types import ModuleType

_REBUILD = "pip install --force-reinstall --no-deps . (in the source tree)"
_LEAST = "2.11"  # as cmake/package.cmake has it


def minor(version: str) -> str:
    """'2.13.0+cpu' -> '2.13'."""
    return ".".join(version.split(".")[:2])


def load() -> ModuleType:
    """isthmus._torch. c10d has no stable ABI: the module only works with the torch minor that it was built against."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            "isthmus.torch needs PyTorch, and it is not installed here. Install it (pip install torch==2.13.0), then build "
            f"isthmus against it: {_REBUILD}"
        ) from error
    try:
        built: str = importlib.import_module("isthmus._torch_build").TORCH_VERSION
    except ImportError as error:
        raise ImportError(
            f"isthmus was built without its torch backend: there was no PyTorch of {_LEAST} or newer in the environment of "
            f"the build. PyTorch {torch.__version__} is here now; rebuild with: {_REBUILD}"
        ) from error
    if minor(built) != minor(torch.__version__):
        raise ImportError(
            f"isthmus.torch was built against PyTorch {built}, and PyTorch {torch.__version__} is running; the backend "
            f"interface differs between {minor(built)} and {minor(torch.__version__)}. Rebuild with: {_REBUILD}"
        )
    if not torch.distributed.is_available():
        raise ImportError("isthmus.torch needs a PyTorch with torch.distributed, and this one was built without it")
    return importlib.import_module("isthmus._torch")
