"""A function that may hang or crash, run in a forked process: its answer, or why there is none."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from typing import Any, Callable, Mapping, Sequence

#: An answer larger than this, as JSON, is none.
MAX_ANSWER_BYTES = 512 * 1024
#: The kernel ends a probe of which nobody is left to do so, that much after its bound.
_ALONE_S = 2.0
_KILL_PATIENCE_S = 0.05
#: ``kind`` of an entry that was not there in time.
LATE = "late"

Probe = Callable[[], Mapping[str, Any]]


class Fork:
    """
    One probe, running.

    :param probe: called in the new process; gives a dictionary of JSON's types.
    :param bound_s: seconds from now after which :meth:`poll` kills it.
    :raises OSError: no process could be made.
    """

    def __init__(self, probe: Probe, bound_s: float) -> None:
        self.bound_s = bound_s
        self.until = time.monotonic() + bound_s
        self.answer: dict[str, Any] | None = None
        self._said = bytearray()
        self.pipe, writing = os.pipe()
        try:
            with warnings.catch_warnings():
                # The new process does one thing and ends without returning: other threads' locks are not met.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
        except OSError:
            os.close(self.pipe)
            os.close(writing)
            raise
        if self.pid == 0:
            _run(probe, writing, bound_s + _ALONE_S)
        os.close(writing)
        os.set_blocking(self.pipe, False)

    def poll(self) -> dict[str, Any] | None:
        """Its answer, ``{"not_seen": why}`` when there will be none, or None as long as it may still come."""
        while self.answer is None:
            try:
                piece = os.read(self.pipe, 65536)
            except BlockingIOError:
                if time.monotonic() >= self.until:
                    self._end({"not_seen": f"did not answer within {self.bound_s:g} s", "kind": LATE})
                break
            self._said += piece
            if len(self._said) > MAX_ANSWER_BYTES:
                self._end({"not_seen": f"said more than {MAX_ANSWER_BYTES} bytes"})
            elif not piece:
                self._end(None)
        return self.answer

    def stop(self) -> None:
        """Do not wait for it any longer."""
        if self.answer is None:
            self._end({"not_seen": "was not waited for", "kind": LATE})

    def _end(self, answer: dict[str, Any] | None) -> None:
        os.close(self.pipe)
        if answer is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        status = _collect(self.pid)
        self.answer = answer if answer is not None else _understood(bytes(self._said), status)


def _run(probe: Probe, writing: int, alone_s: float) -> None:
    """In the new process; never returns."""
    try:
        from gpualert import child

        child.restore_signals()
        signal.setitimer(signal.ITIMER_REAL, alone_s)
        # Nothing of a channel or terminal: whoever waits for its end would wait for a probe that hangs.
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        child.keep_only((writing,))
        try:
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        except ImportError:
            pass
        data = json.dumps(probe()).encode()
        while data:
            data = data[os.write(writing, data) :]
        os._exit(0)
    except BaseException as error:
        try:
            text = f"{type(error).__name__}: {error}"[:200]
            os.write(writing, json.dumps({"not_seen": text}).encode())
        finally:
            os._exit(1)


def _collect(pid: int) -> int | None:
    """Its wait status; None when it does not end (or was collected by somebody else)."""
    until = time.monotonic() + _KILL_PATIENCE_S
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.001)


def _understood(said: bytes, status: int | None) -> dict[str, Any]:
    try:
        value = json.loads(said.decode("utf-8"))
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    if status is not None and os.WIFSIGNALED(status):
        return {"not_seen": f"the probe was killed by signal {os.WTERMSIG(status)}"}
    return {"not_seen": "the probe ended without an answer"}


def start(probes: Mapping[str, tuple[Probe, float]]) -> dict[str, Fork | dict[str, Any]]:
    """:param probes: name to (probe, bound in seconds). :return: what runs, or why it does not."""
    running: dict[str, Fork | dict[str, Any]] = {}
    for name, (probe, bound_s) in probes.items():
        try:
            running[name] = Fork(probe, bound_s)
        except OSError as error:
            running[name] = {"not_seen": f"no process could be made: {error.strerror}"}
    return running


def answers(running: Mapping[str, Fork | dict[str, Any]]) -> dict[str, Any] | None:
    """All their entries; None as long as one may still come."""
    found = {name: one.poll() if isinstance(one, Fork) else one for name, one in running.items()}
    return None if any(entry is None for entry in found.values()) else found


def wait(running: Mapping[str, Fork | dict[str, Any]], bound_s: float) -> dict[str, Any]:
    """Their entries, within a bound for all together."""
    until = time.monotonic() + bound_s
    while True:
        found = answers(running)
        left = until - time.monotonic()
        if found is not None:
            return found
        if left <= 0:
            break
        waiting: Sequence[int] = [one.pipe for one in running.values() if isinstance(one, Fork) and one.answer is None]
        select.select(waiting, [], [], min(left, 0.1))
    for one in running.values():
        if isinstance(one, Fork):
            one.stop()
    return answers(running) or {}
