"""One pass over a log, as it grows or afterwards: fast, in flat memory, whatever the bytes are.

A training log repeats itself. Every line is folded (letters lowered, digits dropped), and a folded form that was seen
before and held no word of interest is never looked at again: it costs one set lookup. Only what is new is searched for
a few dozen stems; only lines with a stem are decoded and shown to the rules. So the price of a rule does not depend on
the size of the log, and what is slow never sees more than a small part of it.

What a scan finds is a function of the bytes alone, not of how they were cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Mapping, NamedTuple, Sequence

from gpualert.logprefix import clean, level_of, rank_of, split
from gpualert.progress import PROGRESS_STEMS, is_progress
from gpualert.signature import RuleSet, default_rules
from gpualert.tracebacks import TracebackParser

#: Bytes looked at together; also the length at which a line without end is cut.
WINDOW_BYTES = 1 << 18
#: Bytes of a line that the rules see; a longer one is seen from its start.
_LINE_BYTES = 1 << 14
_TAIL_BYTES = 1 << 13
_CACHE_FORMS = 30_000
#: A folded form longer than this is not remembered, so that the cache stays small in bytes too.
_CACHE_FORM_BYTES = 600
_KEEP_FIRST = 6
_KEEP_LAST = 3
_MAX_TEXT = 1000

_FOLD = bytearray(bytes(range(256)).lower())
_FOLD[13] = 10  # a carriage return ends a segment as a newline does
_FOLD_TABLE = bytes(_FOLD)
_DROPPED = b"0123456789\0"
_CR_TO_LF = bytes.maketrans(b"\r", b"\n")

STATE_VERSION = 1


class Event(NamedTuple):
    """A rule's match on a line.

    ``progress`` counts the lines that showed the training advancing before this one. ``trace`` is the id of the
    traceback whose exception or message this line is. ``level`` is the line's own log level, if it names one.
    """

    rule: str
    line: int
    offset: int
    rank: int | None
    text: str
    progress: int
    trace: int | None
    level: str | None


@dataclass(frozen=True)
class ScanResult:
    """What a log holds that a verdict may need. Bounded, whatever the log's size.

    :param events: matches in the order of the log; of a rule that matched often, its first and last ones.
    :param counts: how often each rule matched in all.
    :param traces: Python tracebacks, as :mod:`gpualert.tracebacks` describes them.
    :param progress: lines in all that showed the training advancing; ``last_progress`` is the last of them.
    :param tail: the last lines, as (line, offset, text).
    """

    events: tuple[Event, ...] = ()
    counts: Mapping[str, int] = None  # type: ignore[assignment]
    traces: tuple[Mapping[str, Any], ...] = ()
    progress: int = 0
    last_progress: tuple[int, int, str] | None = None
    tail: tuple[tuple[int, int, str], ...] = ()
    size_bytes: int = 0
    lines: int = 0
    binary: bool = False
    rules: RuleSet | None = None

    def __post_init__(self) -> None:
        if self.counts is None:
            object.__setattr__(self, "counts", {})


class Scanner:
    """Feed it a log's bytes in any pieces; ask it for the result when there are no more.

    ``to_state`` and ``from_state`` carry a scan over to another process: it goes on at ``offset_bytes``.
    """

    def __init__(self, rules: RuleSet | None = None) -> None:
        self.rules = rules if rules is not None else default_rules()
        self._parser = TracebackParser()
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._done = 0  # bytes looked at
        self._newlines = 0  # newlines among them
        self._progress = 0
        self._last_progress: tuple[int, int, str] | None = None
        #: the last block that showed progress: bytes, index of the segment, offset and newlines before the block
        self._progress_block: tuple[bytes, int, int, int] | None = None
        self._tail = b""
        self._odd_bytes = 0
        self._hits: dict[str, dict[str, Any]] = {}
        # Caches: they change the speed and nothing else.
        self._cold: set[bytes] = set()
        self._advancing: set[bytes] = set()
        self._hot: dict[bytes, tuple[int, ...]] = {}

    @property
    def offset_bytes(self) -> int:
        """Where a scan that is restored from ``to_state`` wants its next byte from, after ``to_state`` was called."""
        return self._done

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, in any amount."""
        if not data:
            return
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size >= WINDOW_BYTES:
            self._drain(last=False)

    def finish(self) -> ScanResult:
        """No more bytes: the last line ends here, and so does this scanner."""
        self._drain(last=True)
        self._parser.finish()
        self._find_last_progress()
        events: list[Event] = []
        for name, hit in self._hits.items():
            events.extend(Event(name, *item) for item in hit["first"])
            events.extend(Event(name, *item) for item in hit["last"])
        events.sort(key=lambda event: (event.offset, self.rules.order(event.rule)))
        return ScanResult(
            events=tuple(events),
            counts={name: hit["n"] for name, hit in self._hits.items()},
            traces=tuple(self._parser.done),
            progress=self._progress,
            last_progress=self._last_progress,
            tail=self._tail_lines(),
            size_bytes=self._done,
            lines=self._newlines,
            binary=self._odd_bytes * 10 > self._done,
            rules=self.rules,
        )

    def to_state(self) -> dict[str, Any]:
        """Everything that is needed to go on, as plain JSON of bounded size; feed it from ``offset_bytes`` on."""
        self._drain(last=False)
        self._find_last_progress()
        return {
            "version": STATE_VERSION,
            "rules": self.rules.digest(),
            "done": self._done,
            "newlines": self._newlines,
            "progress": self._progress,
            "last_progress": self._last_progress,
            "tail": self._tail.decode("latin-1"),
            "odd_bytes": self._odd_bytes,
            "hits": {
                name: {"n": hit["n"], "first": list(hit["first"]), "last": list(hit["last"])}
                for name, hit in self._hits.items()
            },
            "traces": self._parser.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], rules: RuleSet | None = None) -> Scanner:
        """
        Go on where ``to_state`` was called, with the bytes from ``offset_bytes`` on.

        :raises ValueError: the state was written by another version or with other rules; scan from the start then.
        """
        scanner = cls(rules)
        if state.get("version") != STATE_VERSION:
            raise ValueError("scan state: expected version %d, found %r" % (STATE_VERSION, state.get("version")))
        if state.get("rules") != scanner.rules.digest():
            raise ValueError("scan state: it was written with other rules than these")
        scanner._done = int(state["done"])
        scanner._newlines = int(state["newlines"])
        scanner._progress = int(state["progress"])
        last = state["last_progress"]
        scanner._last_progress = None if last is None else (last[0], last[1], last[2])
        scanner._tail = state["tail"].encode("latin-1")
        scanner._odd_bytes = int(state["odd_bytes"])
        scanner._hits = {
            name: {"n": hit["n"], "first": [tuple(i) for i in hit["first"]], "last": [tuple(i) for i in hit["last"]]}
            for name, hit in state["hits"].items()
        }
        scanner._parser = TracebackParser.from_state(state["traces"])
        return scanner

    # -- the fast part -------------------------------------------------------------------------------------------

    def _drain(self, last: bool) -> None:
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        size = len(data)
        position = 0
        while position < size:
            chunk = data[position : position + WINDOW_BYTES]
            whole = position + WINDOW_BYTES >= size
            if whole and last:
                self._block(chunk)
                position += len(chunk)
                break
            cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            if cut == 0:
                if len(chunk) < WINDOW_BYTES:
                    break
                cut = WINDOW_BYTES
            elif whole and len(chunk) < WINDOW_BYTES:
                # Fewer bytes than a window: take the complete lines only where the caller wants them all.
                self._block(chunk[:cut])
                position += cut
                break
            self._block(chunk[:cut])
            position += cut
        rest = data[position:]
        self._pending = [rest] if rest else []
        self._pending_size = len(rest)

    def _block(self, raw: bytes) -> None:
        """Look at complete segments (lines, or pieces of one that carriage returns or sheer length divide)."""
        folded = raw.translate(_FOLD_TABLE, _DROPPED)
        forms = folded.split(b"\n")
        if raw[-1] in b"\r\n":
            forms.pop()
        unseen = set(forms)
        unseen.difference_update(self._cold)
        hot = self._sort_out(unseen) if unseen else {}
        advancing = self._advancing
        gain = sum(map(advancing.__contains__, forms)) if advancing else 0
        if hot or self._parser.wants_lines:
            self._walk(raw, forms, hot)
        if gain:
            index = next(i for i in range(len(forms) - 1, -1, -1) if forms[i] in advancing)
            self._progress_block = (raw, index, self._done, self._newlines)
        self._progress += gain
        self._done += len(raw)
        if b"\r" in raw:
            self._newlines += raw.count(b"\n")
        else:
            self._newlines += len(forms) - (raw[-1] != 10)
        self._tail = raw[-_TAIL_BYTES:] if len(raw) >= _TAIL_BYTES else (self._tail + raw)[-_TAIL_BYTES:]
        if len(self._cold) > _CACHE_FORMS or len(self._hot) > _CACHE_FORMS:
            self._cold = set()
            self._advancing = set()
            self._hot = {}

    def _sort_out(self, unseen: set[bytes]) -> dict[bytes, tuple[int, ...]]:
        """Divide forms not known to be cold: which hold a stem (with the rules to try), which show progress."""
        known = self._hot
        hot: dict[bytes, tuple[int, ...]] = {}
        if known:
            for form in unseen.intersection(known):
                hot[form] = known[form]
            unseen = unseen.difference(hot)
        fresh = list(unseen)
        blob = b"\n".join(fresh)
        suspects = _lines_with(blob, self.rules.stems)
        for form in suspects:
            rules = self.rules.candidates(form)
            if rules is not None:
                hot[form] = rules
                if len(form) <= _CACHE_FORM_BYTES:
                    known[form] = rules
        for form in _lines_with(blob, PROGRESS_STEMS):
            if is_progress(form):
                self._advancing.add(form)
        if len(blob) > 4 * WINDOW_BYTES or any(len(form) > _CACHE_FORM_BYTES for form in fresh):
            fresh = [form for form in fresh if len(form) <= _CACHE_FORM_BYTES]
        self._cold.update(form for form in fresh if form not in hot)
        return hot

    def _walk(self, raw: bytes, forms: Sequence[bytes], hot: Mapping[bytes, tuple[int, ...]]) -> None:
        """Show the hot segments to the rules, and every one to the traceback parser while it wants them."""
        segments = (raw.translate(_CR_TO_LF) if b"\r" in raw else raw).split(b"\n")
        advancing = self._advancing
        has_returns = b"\r" in raw
        at, offset = 0, 0
        newlines, progress = self._newlines, self._progress
        base = self._done
        index = 0
        total = len(forms)
        hot_indexes = [i for i, form in enumerate(forms) if form in hot] if hot else []
        upcoming = iter(hot_indexes)
        target = next(upcoming, None)
        while True:
            if self._parser.wants_lines:
                here = index
                while target is not None and target < here:
                    target = next(upcoming, None)
            elif target is None:
                break
            else:
                while target is not None and target < index:
                    target = next(upcoming, None)
                if target is None:
                    break
                here = target
            if here >= total:
                break
            if here > at:
                span = sum(map(len, islice(segments, at, here))) + (here - at)
                newlines += raw.count(b"\n", offset, offset + span) if has_returns else here - at
                if advancing:
                    progress += sum(map(advancing.__contains__, islice(forms, at, here)))
                offset += span
                at = here
            self._look(segments[here], newlines + 1, base + offset, progress, hot.get(forms[here], ()))
            index = here + 1

    # -- the careful part ----------------------------------------------------------------------------------------

    def _look(self, raw: bytes, number: int, offset: int, progress: int, candidates: tuple[int, ...]) -> None:
        text = clean(raw[:_LINE_BYTES])
        if not text:
            if self._parser.wants_lines:
                self._parser.see(split(""), number, offset, None, progress)
            return
        line = split(text)
        rank = rank_of(line)
        trace = self._parser.see(line, number, offset, rank, progress)
        if not candidates or (trace is not None and trace["id"] == -1):
            return
        matched = self.rules.match(candidates, text, trace is not None)
        if not matched:
            return
        level = level_of(text)
        for name in matched:
            self._note(name, number, offset, rank, text, progress, trace, level)

    def _note(
        self,
        name: str,
        number: int,
        offset: int,
        rank: int | None,
        text: str,
        progress: int,
        trace: dict[str, Any] | None,
        level: str | None,
    ) -> None:
        if trace is not None and len(trace["rules"]) < 8:
            trace["rules"].append([name, number, offset, text[:_MAX_TEXT]])
        hit = self._hits.get(name)
        if hit is None:
            hit = self._hits[name] = {"n": 0, "first": [], "last": []}
        hit["n"] += 1
        item = (number, offset, rank, text[:_MAX_TEXT], progress, None if trace is None else trace["id"], level)
        if len(hit["first"]) < _KEEP_FIRST:
            hit["first"].append(item)
        else:
            hit["last"].append(item)
            if len(hit["last"]) > _KEEP_LAST:
                del hit["last"][0]

    def _find_last_progress(self) -> None:
        """Number, offset and text of the last line that showed progress; worked out only when somebody asks."""
        if self._progress_block is None:
            return
        raw, index, done, newlines = self._progress_block
        self._progress_block = None
        segments = (raw.translate(_CR_TO_LF) if b"\r" in raw else raw).split(b"\n")
        offset = sum(map(len, islice(segments, 0, index))) + index
        number = newlines + raw.count(b"\n", 0, offset) + 1
        self._last_progress = (number, done + offset, clean(segments[index][:_LINE_BYTES])[:300])

    def _tail_lines(self) -> tuple[tuple[int, int, str], ...]:
        data = self._tail
        start = self._done - len(data)
        number = self._newlines - data.count(b"\n") + 1
        found: list[tuple[int, int, str]] = []
        offset = start
        for part in data.split(b"\n"):
            last_piece = part.rstrip(b"\r").rfind(b"\r") + 1
            text = clean(part[last_piece:][:2000])
            if text:
                found.append((number, offset + last_piece, text[:_MAX_TEXT]))
            number += 1
            offset += len(part) + 1
        return tuple(found[-40:])


def _lines_with(blob: bytes, stems: Sequence[bytes]) -> set[bytes]:
    """The lines of a blob that hold one of the stems."""
    found: set[bytes] = set()
    for stem in stems:
        position = blob.find(stem)
        while position >= 0:
            start = blob.rfind(b"\n", 0, position) + 1
            end = blob.find(b"\n", position)
            if end < 0:
                end = len(blob)
            found.add(blob[start:end])
            position = blob.find(stem, end)
    return found
