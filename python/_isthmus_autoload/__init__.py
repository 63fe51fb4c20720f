"""Makes the backend name "isthmus" known to torch.distributed, at the price of one dictionary entry.

torch calls `register` through its entry points `torch.backends` (at `import torch`) and `torch.distributed.backends` (2.14
and newer, when the name is first used). This is a package of its own so that a broken installation of isthmus can never
break `import torch`: isthmus itself is imported when the first group is made.
"""

from __future__ import annotations

from typing import Any

NAME = "isthmus"

# One bare name serves every device, so that ranks with different devices share one group. cpu comes first: torch names the
# keys of the rendezvous after the first device, and they must be equal on all ranks.
DEVICES = ["cpu", "cuda", "xpu", "privateuseone"]


def _create(options: Any, group_options: Any) -> Any:
    from isthmus.torch import create

    return create(options, group_options)


def register() -> None:
    """Registers the backend, once."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    defaults = dist.Backend.default_device_backend_map
    before = dict(defaults)
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
    # torch made us the default of devices that had none. That is for their vendors' extensions to choose.
    for device in [d for d in defaults if d not in before]:
        del defaults[device]
