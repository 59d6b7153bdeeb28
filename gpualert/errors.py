"""What the core raises when *we* cannot work. A user's job that fails is an ordinary result, never an exception.

Every error has a ``kind``: a short stable word that crosses the wire and that code may branch on, beside the message
for people, which names the thing, what was expected and what was found.
"""

from __future__ import annotations


class GpuAlertError(Exception):
    """Base of all errors of the core."""

    kind = "internal"

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class InvalidSpec(GpuAlertError, ValueError):
    """The caller asked for something that cannot be run as asked."""

    kind = "invalid_spec"


class RunDirectoryError(GpuAlertError):
    """The disk: a root or a file is missing, unreadable, foreign, full or damaged."""

    kind = "disk"


class NewerFormat(RunDirectoryError):
    """A file was written by a newer gpualert. That is an answer, never LOST."""

    kind = "newer_format"


class Refused(GpuAlertError):
    """The host will not do it, for the launch's own safety: superseded, tombstoned, stale epoch, unreadable root."""

    kind = "refused"


class UnknownLaunch(GpuAlertError):
    """No launch of that name in any root that could be read."""

    kind = "unknown_launch"


class ProtocolError(GpuAlertError):
    """The other end said something that this version does not understand."""

    kind = "protocol"
