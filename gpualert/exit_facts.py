"""How a launch ended, as far as anybody saw it, in the form that the judgement wants."""

from __future__ import annotations

from dataclasses import dataclass

SIGINT, SIGHUP, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM = 2, 1, 4, 6, 7, 8, 9, 11, 15
_SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}


@dataclass(frozen=True)
class ExitFacts:
    """How the child ended, and who had a hand in it.

    :param code: 0..255; None when a signal ended it or nobody saw the end.
    :param signal: the signal's number; None when none did.
    :param stopped_by: ``request``, ``deadline`` or ``hang`` when we ended it; None when we did not.
    :param setup_failed: the user's setup part failed before the command began.
    :param lost: ``rebooted``, ``vanished`` or another reason when nobody saw the end; None when somebody did.
    :param exec_errno: errno of the execve that failed; None when it did not.
    """

    code: int | None = None
    signal: int | None = None
    stopped_by: str | None = None
    setup_failed: bool = False
    lost: str | None = None
    exec_errno: int | None = None

    @property
    def likely_signal(self) -> int | None:
        """The signal, or the one that a shell's 128+N speaks of."""
        if self.signal is not None:
            return self.signal
        if self.code is not None and 128 < self.code < 160:
            return self.code - 128
        if self.code is not None and self.code == 247:  # DeepSpeed reports -9 modulo 256
            return SIGKILL
        return None

    @property
    def succeeded(self) -> bool:
        """Exit 0, by itself."""
        return self.code == 0 and self.signal is None and self.stopped_by is None

    @property
    def known(self) -> bool:
        """Whether anybody saw the end."""
        return self.code is not None or self.signal is not None

    def words(self) -> str:
        """For people."""
        if self.signal is not None:
            return "killed by " + _SIGNAL_NAMES.get(self.signal, "signal %d" % self.signal)
        if self.code is None:
            return "exit status not known" + (f" ({self.lost})" if self.lost else "")
        likely = self.likely_signal
        hint = f" (a shell's code for {_SIGNAL_NAMES[likely]})" if likely in _SIGNAL_NAMES and self.code > 128 else ""
        return "exit code %d%s" % (self.code, hint)
