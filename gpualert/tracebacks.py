"""Python tracebacks, read as what they are, several interleaved ones at a time.

The parser sees the lines from a header on and says when it wants no more. It keeps, for each traceback: type, message,
the line that states it, the last frame in the user's own code, and how it is chained to the one before.
Its state is plain JSON, so that a scan can stop and go on elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from gpualert.logprefix import Line

#: A traceback that shows neither frame nor exception for so many lines of its stream is given up.
_PATIENCE = 40
#: Lines of an exception's message after its first.
_MESSAGE_LINES = 12
_MAX_OPEN = 64
_MAX_KEPT_FIRST = 48
_MAX_KEPT_LAST = 16

_HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r"^(\s*)(?:\|\s*)?File \"([^\"]{1,400})\", line (\d{1,9})(?:, in (\S{1,120}))?")
_EXCEPTION = re.compile(
    r"^(?:\s*\|\s)?((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}(?:\([A-Za-z_][\w.]{0,80}\))?)(?::(?:\s+|$)(.*)|\s*$)",
    re.S,
)
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Failure|Failed|Timeout|Empty|Full|Fault|NotFound|Denied"
    r"|Invalid|Exceeded|Refused|Aborted|Cancelled|Mismatch|Expired|Stop)\w{0,12}(?:\([\w.]+\))?$"
)
#: How the lines of a traceback drawn by `rich` begin.
_BOX = ("│", "╭", "╰", "|", "❱")
#: Lines that belong to somebody else, although an exception's message might still go on.
_NOT_MESSAGE = re.compile(
    r"\[|\{|\d{4}[-/]\d\d|[IWEF]\d{4} |[a-z][\w.-]{0,40}: |\s{0,3}\d{1,3}%|frame #|terminate called|Killed|Aborted"
    r"|Segmentation|Fatal Python|=====|-----"
)
#: What stands before every line of an exception group, and before its header.
_GROUP_LINE = re.compile(r"\s{0,80}\|(?: |$)")
_GROUP_HEADER = re.compile(r"\s{0,80}[+|] (?:Exception Group )?Traceback")
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
#: Not exceptions, although they look like one at the start of a line.
_NOT_EXCEPTIONS = {
    "Failures",
    "Failure",
    "Failed",
    "Errors",
    "Warnings",
    "Timeout",
    "Stop",
    "Exit",
    "ERROR",
    "INFO",
    "WARNING",
    "WARN",
    "DEBUG",
    "CRITICAL",
    "FATAL",
    "Epoch",
    "Step",
    "Loss",
    "Iter",
    "Iteration",
    "Time",
    "Note",
    "NOTE",
    "Usage",
    "usage",
    "File",
    "Name",
    "Type",
    "Value",
    "Thread",
    "wandb",
    "srun",
    "slurmstepd",
    "bash",
    "sh",
    "mpirun",
    "kernel",
    "make",
    "Warning",
    "Train",
    "Val",
    "Test",
    "Eval",
    "Exception",
    "http",
    "https",
    "Job",
    "Hint",
}
#: The message goes on with the exception that was wrapped.
_WRAPS = ("raised:", "exception:", "error:", "caused by:")
#: Old exceptions of C modules: ``socket.gaierror``, ``zlib.error``, ``cv2.error``.
_LOWER_CASE = {"error", "gaierror", "herror", "timeout"}
_LIBRARY_PATHS = (
    "site-packages",
    "dist-packages",
    "/lib/python",
    "/lib64/python",
    "<frozen",
    "<string>",
    "/bin/",
    "runpy.py",
)


def is_user_frame(path: str) -> bool:
    """Whether a frame's file belongs to the user rather than to Python or an installed package."""
    return not any(part in path for part in _LIBRARY_PATHS)


_PACKAGE = re.compile(r"(?:site-packages|dist-packages|lib(?:64)?/python[\d.]+)/([\w.-]+(?:/[\w.-]+){0,2})")


def package_of(path: str) -> str:
    """The installed package (up to three parts of its path) that a frame's file belongs to; empty: the user's own."""
    found = _PACKAGE.search(path)
    return found.group(1) if found is not None else ""


def exception_of(body: str, in_traceback: bool) -> re.Match[str] | None:
    """Match a line that states an exception; stricter where no traceback was open."""
    match = _EXCEPTION.match(body)
    if match is None:
        return None
    name = match.group(1)
    last = name.rsplit(".", 1)[-1] if "(" not in name else name
    if last in _NOT_EXCEPTIONS and not (last == "Exception" and in_traceback):
        return None
    if _EXCEPTION_NAME.search(last):
        return match
    if not in_traceback:
        return None
    # Any class may be raised: accept CamelCase with a message, or a dotted name, but no word of prose.
    if match.group(2) is not None and (last[:1].isupper() and any(c.islower() for c in last)) and " " not in last:
        return match
    if "." in name and (last[:1].isupper() or last in _LOWER_CASE):
        return match
    return None


def _lead_of(text: str) -> str:
    """A pattern for what a logger puts before every line of a traceback; empty when there is nothing."""
    if not text.strip() or len(text) > 120 or text.lstrip().startswith(_BOX):
        return ""
    return r"\d+".join(re.escape(part) for part in re.split(r"\d+", text))


class TracebackParser:
    """Feed it lines in order; it collects tracebacks as dictionaries in ``done``."""

    def __init__(self) -> None:
        #: by stream: the traceback being read
        self.open: dict[str, dict[str, Any]] = {}
        self.done: list[dict[str, Any]] = []
        self.count = 0
        #: by stream: (id of the last finished one, kind of link announced for the next, lines since)
        self._links: dict[str, list[Any]] = {}

    @property
    def wants_lines(self) -> bool:
        """Whether every following line has to be shown, not only those with a frame or header in them."""
        return bool(self.open)

    def see(self, line: Line, number: int, offset: int, rank: int | None, progress: int) -> dict[str, Any] | None:
        """
        Take one line.

        :return: the traceback that the line belongs to as its exception or message; ``{"id": -1}`` for a line inside
            a traceback that proves nothing by itself (frame, source); None for any other line.
        """
        body = line.body
        stream = line.stream
        current = self.open.get(stream)
        if current is not None and current["lead"]:
            lead = re.match(current["lead"], body)
            if lead is not None:
                body = body[lead.end() :]
        if current is not None and current["group"]:
            lead = _GROUP_LINE.match(body)
            if lead is not None:
                body = body[lead.end() :]
        if _HEADER in body:
            self._close(stream)
            fresh = self._start(stream, rank, number, offset, progress, len(body) - len(body.lstrip(" ")))
            fresh["group"] = _GROUP_HEADER.match(line.body) is not None
            if fresh["group"]:
                fresh["indent"] = 0
            else:
                fresh["lead"] = _lead_of(line.body[: line.body.find(_HEADER)])
            return {"id": -1}
        if body.startswith((_CAUSE, _CONTEXT)) or _CAUSE in body or _CONTEXT in body:
            self._close(stream)
            link = self._links.get(stream)
            if link is not None:
                link[1] = "cause" if _CAUSE in body else "context"
            return {"id": -1}
        frame = _FRAME.match(body)
        if frame is not None:
            if current is None or current["state"] == "message":
                self._close(stream)
                current = self._start(stream, rank, number, offset, progress, max(0, len(frame.group(1)) - 2))
                current["headerless"] = True
            current["patience"] = _PATIENCE
            current["strangers"] = 0
            current["last_frame"] = f"{frame.group(2)}:{frame.group(3)}"
            if is_user_frame(frame.group(2)):
                current["user_frame"] = "{}:{}{}".format(
                    frame.group(2),
                    frame.group(3),
                    " in " + frame.group(4) if frame.group(4) else "",
                )
                current["user_is_last"] = True
            else:
                current["user_is_last"] = False
            current["frames"] += 1
            package = package_of(frame.group(2))
            if package not in current["packages"] and len(current["packages"]) < 24:
                current["packages"].append(package)
            return {"id": -1}
        if current is None:
            return None
        if current["state"] == "message":
            return self._more_message(current, stream, body)
        return self._inside(current, stream, line, body, number, offset, progress)

    def _inside(
        self, current: dict[str, Any], stream: str, line: Line, body: str, number: int, offset: int, progress: int
    ) -> dict[str, Any] | None:
        if body.lstrip().startswith(_BOX):
            return {"id": -1}
        indent = len(body) - len(body.lstrip(" "))
        if indent <= current["indent"]:
            stated = exception_of(body.strip(), True)
            if stated is not None and not self._may_state(current, stated.group(1)):
                stated = None
            if stated is not None:
                current.update(
                    state="message",
                    type=stated.group(1),
                    message=(stated.group(2) or "")[:1000],
                    exception_line=number,
                    exception_offset=offset,
                    text=line.text[:1000],
                    progress=progress,
                    more=_MESSAGE_LINES,
                )
                return current
        if "/dev/shm" in body and indent > current["indent"] and "/dev/shm" not in current["packages"]:
            # The source of a frame tells where a file was meant to be, which errno alone does not.
            current["packages"].append("/dev/shm")
        current["patience"] -= 1
        if indent <= current["indent"] and body.strip():
            current["strangers"] += 1
        if current["patience"] <= 0:
            self._close(stream)
            return None
        # Source lines are indented deeper than the header; anything else is another process's line in between.
        return {"id": -1} if indent > current["indent"] else None

    @staticmethod
    def _may_state(current: dict[str, Any], name: str) -> bool:
        """Any word may be a class, and a warning is seldom raised: such names only right behind a frame."""
        usual = _EXCEPTION_NAME.search(name) is not None and not name.endswith("Warning")
        return usual or (current["frames"] > 0 and current["strangers"] == 0)

    def _more_message(self, current: dict[str, Any], stream: str, body: str) -> dict[str, Any] | None:
        current["more"] -= 1
        if current["more"] < 0:
            self._close(stream)
            return None
        if not body.strip():
            current["more"] = min(current["more"], 2)
            return None
        wraps = current["message"].rstrip().endswith(_WRAPS)
        if not wraps and (exception_of(body.strip(), False) is not None or _NOT_MESSAGE.match(body) is not None):
            self._close(stream)
            return None
        if len(current["message"]) < 1500:
            current["message"] += "\n" + body[:500]
        return current

    def _start(
        self, stream: str, rank: int | None, number: int, offset: int, progress: int, indent: int
    ) -> dict[str, Any]:
        if len(self.open) >= _MAX_OPEN:
            self._close(next(iter(self.open)))
        link = self._links.pop(stream, None)
        self.count += 1
        fresh: dict[str, Any] = {
            "id": self.count,
            "stream": stream,
            "rank": rank,
            "line": number,
            "offset": offset,
            "progress": progress,
            "indent": indent,
            "state": "frames",
            "patience": _PATIENCE,
            "frames": 0,
            "last_frame": None,
            "user_frame": None,
            "user_is_last": False,
            "headerless": False,
            "type": None,
            "message": "",
            "exception_line": None,
            "exception_offset": None,
            "text": "",
            "more": 0,
            "previous": link[0] if link and link[1] else None,
            "link": link[1] if link else None,
            "rules": [],
            "lead": "",
            "group": False,
            "strangers": 0,
            "packages": [],
        }
        self.open[stream] = fresh
        return fresh

    def _close(self, stream: str) -> None:
        current = self.open.pop(stream, None)
        if current is None:
            return
        if current["type"] is None:
            return
        self._links[stream] = [current["id"], None]
        if len(self._links) > 4 * _MAX_OPEN:
            self._links.pop(next(iter(self._links)))
        self.done.append(current)
        if len(self.done) > _MAX_KEPT_FIRST + 2 * _MAX_KEPT_LAST:
            del self.done[_MAX_KEPT_FIRST:-_MAX_KEPT_LAST]

    def finish(self) -> None:
        """No more lines: what is open ends here."""
        for stream in list(self.open):
            self._close(stream)
        self.done.sort(key=lambda item: (item["offset"], item["id"]))

    def to_state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"open": self.open, "done": self.done, "count": self.count, "links": self._links}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> TracebackParser:
        """The inverse of ``to_state``; takes the dictionaries over."""
        parser = cls()
        parser.open = state["open"]
        parser.done = state["done"]
        parser.count = state["count"]
        parser._links = state["links"]
        return parser
