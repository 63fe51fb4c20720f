"""The exceptions of Isthmus. Every class is an `Error`. Where Python has a class of the same meaning, it is a base too."""

from __future__ import annotations

import builtins

__all__ = [
    "AbortedError",
    "ArgumentError",
    "AuthError",
    "ConfigError",
    "DeviceError",
    "Error",
    "ForkedError",
    "InternalError",
    "InterruptedError",
    "MismatchError",
    "PeerLostError",
    "ResourceError",
    "SystemError",
    "TimeoutError",
    "UnsupportedError",
]


class Error(RuntimeError):
    """Any failure of Isthmus. Its text names the operation, the rank and the peer, and says what to try.

    **`ranks`**: who is lost or has left (PeerLostError), did not come (TimeoutError), or has a device that failed
    (DeviceError), as far as that is known: in the errors of operations, of `Work`, of `Comm.error`, of `agree`, and of the
    calls that make another communicator. They are numbers of the communicator that was called; after `reconfigure`, those
    that it has then. Empty for other failures, where a rank has come and is slow, and in an agreement where the rank that
    leads it has called: that one knows who has not, and has the ranks in its own error.
    """

    ranks: tuple[int, ...] = ()


class ArgumentError(Error, ValueError):
    """A bad argument. Nothing was started, the communicator is unharmed."""


class ConfigError(Error, ValueError):
    """A setting is unknown, malformed or out of range, or the launcher's variables do not fit together."""


class MismatchError(Error):
    """Ranks disagree: settings at init, or different operations at one sequence number."""


class TimeoutError(Error, builtins.TimeoutError):  # named as in isthmus.h
    """A deadline passed. The text names the culprit."""


class PeerLostError(Error, ConnectionError):
    """A rank's process died or its connection broke."""


class AbortedError(Error):
    """The communicator was aborted, here or by a peer."""


class ResourceError(Error):
    """Out of staging memory, descriptors or the like."""


class SystemError(Error, builtins.OSError):  # named as in isthmus.h
    """A system call failed."""


class AuthError(Error):
    """A peer could not prove the job key."""


class ForkedError(Error):
    """A forked child used its parent's communicator, or device. It can make communicators of its own, on host memory."""


class InterruptedError(Error, builtins.InterruptedError):  # named as in isthmus.h
    """A signal ended a blocking call, and the signal's handler raised nothing. The communicator is aborted."""


class UnsupportedError(Error, TypeError):
    """A combination without meaning, or one that this build cannot do: device memory, a foreign dtype, MIN on complex."""


class InternalError(Error):
    """A bug in Isthmus."""


class DeviceError(Error):
    """A device failed: a call of its runtime, or what ran on it. The text names the rank."""
