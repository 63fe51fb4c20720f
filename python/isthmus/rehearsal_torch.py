"""A device for PyTorch whose memory is a rehearsal's simulated device memory. Nothing of the product needs it.

>>> from isthmus import rehearsal_torch
>>> device = rehearsal_torch.register()  # device(type='rehearsal')
>>> x = torch.ones(3, device="rehearsal")

The device exists in a process that `isthmus rehearse --fleet nvidia:1 -- python script.py` started.

- The simulated vendor's driver gives the tensors' memory, streams and events. So Isthmus treats such tensors as tensors of
  that vendor's device.
- The host cannot touch the memory. The CPU computes on copies.
- The results come back in the order of the stream: late, as from a device.
- The device is a simulation. Its times are no measurements.

`register` makes the device torch.accelerator. A process that has another accelerator should not call `register`. After the
call this module is also `torch.rehearsal`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

from . import rehearse
from ._errors import Error

__all__ = [
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "register",
    "set_device",
    "set_rng_state",
    "stream",
    "synchronize",
    "vendor",
]

NAME = "rehearsal"
IS_SIMULATION = True

_loaded: ModuleType | None = None


def _load() -> ModuleType:
    """Loads the extension module. Its file lies with the simulated libraries, and not among the product's modules."""
    try:
        torch = importlib.import_module("torch")
        built: str = importlib.import_module("isthmus._torch_build").TORCH_VERSION
    except ImportError as error:
        raise ImportError(f"isthmus.rehearsal_torch needs PyTorch, here and where isthmus was built: {error}") from error
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(f"isthmus was built against PyTorch {built}, and {torch.__version__} is running; install anew")
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = rehearse.folder() / f"_torch_device{suffix}"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("_torch_device", file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except ImportError as error:  # any exception that leaves a module's initialization becomes an ImportError
                if not str(error).startswith("rehearsal: "):
                    raise
                raise Error(str(error)) from error
            return module
    raise ImportError(f"isthmus was built without its simulated device for PyTorch: nothing in {rehearse.folder()}")


def register() -> Any:
    """Makes the device known to torch, and returns torch.device("rehearsal"). A second call only returns the device.

    Raises isthmus.Error in two cases: this process finds no simulated vendor, or torch's only place for such a device is
    taken. Raises ImportError where the extension module cannot be loaded.
    """
    global _loaded
    torch = importlib.import_module("torch")
    if _loaded is None:
        taken = torch._C._get_privateuse1_backend_name()
        if taken not in (NAME, "privateuseone"):
            raise Error(f"rehearsal: torch has room for one device of this kind, and '{taken}' has it in this process")
        module = _load()
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, sys.modules[__name__])
        torch.utils.generate_methods_for_privateuse1_backend()
        _loaded = module
    return torch.device(NAME)


def _module() -> ModuleType:
    if _loaded is None:
        raise Error("rehearsal: isthmus.rehearsal_torch.register() was not called")
    return _loaded


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = _torch().device(device).index
    return current_device() if index is None else int(index)


def _torch() -> Any:
    return sys.modules["torch"]


def __getattr__(name: str) -> Any:
    if name in ("Stream", "Event"):  # torch's own classes, which serve any accelerator
        return getattr(importlib.import_module("torch"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


# ---- devices ----


def vendor() -> str:
    """The name that the vendor's own PyTorch has for such a device: "cuda", "hip" or "npu"."""
    return str(_module().vendor())


def is_available() -> bool:
    return _loaded is not None and device_count() > 0


def is_initialized() -> bool:
    return is_available()


def _lazy_init() -> None:
    """torch calls this function before the first use of a device. register() has done all the work already."""


def _is_in_bad_fork() -> bool:
    return _loaded is not None and bool(_loaded.in_forked_child())


def device_count() -> int:
    return int(_module().device_count())


def current_device() -> int:
    return int(_module().current_device())


def set_device(device: Any) -> None:
    _module().set_device(_index(device))


def get_device_name(device: Any = None) -> str:
    """The driver's name for the device. The name says that the device is simulated."""
    return str(_module().device_name(_index(device)))


class device:  # noqa: N801 - torch's name for it
    """A context in which `device` is the current device of the calling thread."""

    def __init__(self, device: Any) -> None:
        self._index = _index(device)
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._index)

    def __exit__(self, *exception: object) -> None:
        set_device(self._before)


# ---- streams ----


def synchronize(device: Any = None) -> None:
    """Waits until the device has done all work that it was given."""
    _module().synchronize(_index(device))


def current_stream(device: Any = None) -> Any:
    return _torch().accelerator.current_stream(_torch().device(NAME, _index(device)))


def default_stream(device: Any = None) -> Any:
    kind = int(_torch()._C._autograd.DeviceType.PrivateUse1)
    return _torch().Stream(stream_id=0, device_index=_index(device), device_type=kind)


def stream(stream: Any) -> Any:
    """A context in which `stream` is the current stream. None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def set_stream(stream: Any) -> None:
    _torch().accelerator.set_stream(stream)


# ---- memory ----


def empty_cache() -> None:
    """Gives the memory that is kept for reuse back to the driver: the devices' memory, and pinned memory of the host."""
    _module().empty_cache()


def memory_allocated(device: Any = None) -> int:
    return int(_torch().accelerator.memory_allocated(_index(device)))


def memory_reserved(device: Any = None) -> int:
    return int(_torch().accelerator.memory_reserved(_index(device)))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes and all bytes of the device, as the driver says."""
    left, whole = _torch().accelerator.get_memory_info(_index(device))
    return int(left), int(whole)


# ---- random numbers: the CPU's, as the CPU computes ----


def manual_seed(seed: int) -> None:
    _torch().default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    manual_seed(seed)


def get_rng_state(device: Any = None) -> Any:
    return _torch().get_rng_state()


def set_rng_state(new_state: Any, device: Any = None) -> None:
    _torch().set_rng_state(new_state)


def get_amp_supported_dtype() -> list[Any]:
    return [_torch().bfloat16, _torch().float16]
