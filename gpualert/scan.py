"""One pass over a log, as it grows or afterwards: fast, in flat memory, whatever the bytes are.

A training log repeats itself. Every line is folded (its digits are dropped), and a folded form that was seen before
and held no word of interest is never looked at again: it costs one set lookup. What is new loses its identifiers too;
if that shape is new as well, it is cut into tokens, and a token is compared with the rules' words once. Only lines that
hold all the words of some branch of a rule are decoded and shown to it. So the price of a rule does not depend on the
size of the log, and what is slow never sees more than a small part of it.

What a scan finds is a function of the bytes alone, not of how they were cut into chunks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from gpualert.logprefix import clean, level_of, rank_of, split
from gpualert.progress import PROGRESS_STEMS, is_progress
from gpualert.signature import RuleSet, default_rules
from gpualert.tracebacks import TracebackParser

#: Bytes looked at together; also the length at which a line without end is cut.
WINDOW_BYTES = 1 << 18
#: Bytes of a line that the rules see; a longer one is seen from its start.
_LINE_BYTES = 1 << 12
#: A longer one is searched for words at its start and its end only.
_LONG_BYTES = 1 << 15
_TAIL_BYTES = 1 << 13
_CACHE_FORMS = 30_000
_CACHE_TOKENS = 100_000
#: A token is what stands between blanks; of a longer one only the start is looked at for words.
_TOKEN_BYTES = 2000
#: A folded form longer than this is not remembered, so that the cache stays small in bytes too.
_CACHE_FORM_BYTES = 600
_KEEP_FIRST = 6
_KEEP_LAST = 3
_MAX_TEXT = 1000

#: Digits go; a carriage return ends a segment as a newline does. Letters keep their case: patterns may depend on it.
_DROPPED = b"0123456789\0"
_CR_TO_LF = bytes.maketrans(b"\r", b"\n")
_TO_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
#: Hexadecimal numbers and UUIDs that hold a digit.
_IDENTIFIER = re.compile(
    rb"(?<![0-9A-Za-z])(?:0[xX])?(?=[A-Fa-f-]{0,24}[0-9])[0-9A-Fa-f]{6,64}(?:-[0-9A-Fa-f]{2,16}){0,5}(?![0-9A-Za-z])"
)

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
        self._cold_shapes: set[bytes] = set()
        self._advancing_shapes: set[bytes] = set()
        self._advancing: set[bytes] = set()
        #: of forms that interest a rule, their shape; and of shapes, the rules that a line may still match
        self._hot: dict[bytes, bytes] = {}
        self._rows_of_shape: dict[bytes, tuple[int, ...]] = {}
        self._full: dict[bytes, tuple[int, ...]] = {}
        self._mute: set[bytes] = set()
        self._speaking: dict[bytes, tuple[int, ...]] = {}

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

    # -- the fast part --

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
        folded = raw.translate(_CR_TO_LF, _DROPPED)
        forms = folded.split(b"\n")
        if raw[-1] in b"\r\n":
            forms.pop()
        unseen = set(forms)
        unseen.difference_update(self._cold)
        hot = self._sort_out(raw, forms, unseen) if unseen else {}
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
        if max(len(self._cold), len(self._hot), len(self._advancing)) > _CACHE_FORMS:
            self._cold = set()
            self._advancing = set()
            self._hot = {}
        if max(len(self._cold_shapes), len(self._advancing_shapes), len(self._rows_of_shape)) > _CACHE_FORMS:
            self._cold_shapes = set()
            self._advancing_shapes = set()
            self._rows_of_shape = {}
            self._hot = {}

    def _sort_out(self, raw: bytes, forms: Sequence[bytes], unseen: set[bytes]) -> dict[bytes, bytes]:
        """Divide forms not known to be cold: which interest a rule (each with its shape), which show progress."""
        known, rows_of = self._hot, self._rows_of_shape
        hot: dict[bytes, bytes] = {}
        heard_of = unseen.intersection(known) if known else set()
        for form in heard_of:
            if known[form] in rows_of:
                hot[form] = known[form]
            else:  # its shape has turned out to be cold
                del known[form]
                self._cold.add(form)
        fresh = unseen.difference(heard_of)
        if not fresh:
            return hot
        by_shape = self._shapes(raw, forms, fresh)
        new = set(by_shape).difference(self._cold_shapes)
        new.difference_update(self._rows_of_shape)
        if new:
            self._judge_shapes(new)
        advancing = self._advancing_shapes
        for shape, these in by_shape.items():
            if shape in advancing:
                self._advancing.update(these)
            if shape in rows_of:
                for form in these:
                    hot[form] = shape
                    if len(form) <= _CACHE_FORM_BYTES:
                        known[form] = shape
            else:
                self._cold.update(form for form in these if len(form) <= _CACHE_FORM_BYTES)
        return hot

    @staticmethod
    def _shapes(raw: bytes, forms: Sequence[bytes], fresh: set[bytes]) -> dict[bytes, list[bytes]]:
        """
        Forms by what is left of their lines, in lower case, without identifiers too: a commit's or a request's letters
        make a line new without making it different.
        """
        segments = (raw.translate(_CR_TO_LF) if b"\r" in raw else raw).split(b"\n")
        line_of = {form: segment for form, segment in zip(forms, segments) if form in fresh}
        lines = [line if len(line) <= _LONG_BYTES else _ends_of(line) for line in line_of.values()]
        blob = _IDENTIFIER.sub(b"", b"\n".join(lines)).translate(_TO_LOWER, _DROPPED)
        found: dict[bytes, list[bytes]] = {}
        for form, shape in zip(line_of, blob.split(b"\n")):
            found.setdefault(shape, []).append(form)
        return found

    def _judge_shapes(self, shapes: set[bytes]) -> None:
        """Which of these new shapes interest a rule, which show progress, and which are cold."""
        blob = b"\n".join(shapes)
        tokens = set(blob.split())
        speaking = self._speaking
        unheard = tokens.difference(self._mute)
        unheard.difference_update(speaking)
        for token in unheard:
            rows = self.rules.rows_of_token(token[:_TOKEN_BYTES])
            if rows is None:
                if len(token) <= _TOKEN_BYTES:
                    self._mute.add(token)
            else:
                speaking[token] = rows
        found = self._rows_of_shape
        heard = tokens.intersection(speaking)
        if heard:
            for shape in shapes:
                spoken = heard.intersection(shape.split())
                if spoken:
                    named = {branch for token in spoken for branch in speaking[token]}
                    candidates = self.rules.candidates(shape, named)
                    if candidates is not None:
                        found[shape] = candidates
        # An advancing line is recognised by a shape that looks so: a few stems, then a pattern.
        if any(stem in blob for stem in PROGRESS_STEMS):
            for shape in shapes:
                if any(stem in shape for stem in PROGRESS_STEMS) and is_progress(shape):
                    self._advancing_shapes.add(shape)
        self._cold_shapes.update(shape for shape in shapes if len(shape) <= _CACHE_FORM_BYTES and shape not in found)
        if len(self._mute) + len(speaking) > _CACHE_TOKENS:
            self._mute = set()
            self._speaking = {}

    def _walk(self, raw: bytes, forms: Sequence[bytes], hot: dict[bytes, bytes]) -> None:
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
            form = forms[here]
            shape = hot.get(form)
            rows = None if shape is None else self._rows_of_shape.get(shape)
            if rows is None and not self._parser.wants_lines:
                index = here + 1
                continue  # another line of this shape has shown meanwhile that no rule can match
            rows = rows or ()
            if self._parser.wants_lines and form:
                # Inside a traceback a line may mean what it does not mean elsewhere: ask for all rows again.
                rows = self._all_rows(form)
            spent = self._look(segments[here], form, newlines + 1, base + offset, progress, rows)
            if spent and shape is not None:
                self._cool(shape, spent)
            index = here + 1

    def _all_rows(self, form: bytes) -> tuple[int, ...]:
        rows = self._full.get(form)
        if rows is None:
            line = form if len(form) <= _LONG_BYTES else _ends_of(form)
            rows = self.rules.candidates_of_line(line.lower()) or ()
            if len(self._full) > _CACHE_FORMS:
                self._full = {}
            if len(form) <= _CACHE_FORM_BYTES:
                self._full[form] = rows
        return rows

    def _cool(self, shape: bytes, spent: Collection[int]) -> None:
        """Rows that can never match a line of this shape, whatever its digits, are not tried on the next one."""
        rows = self._rows_of_shape.get(shape)
        if not rows or len(shape) > _CACHE_FORM_BYTES:
            return
        left = tuple(index for index in rows if index not in spent)
        if left or self.rules.opens_traceback(shape):
            self._rows_of_shape[shape] = left
        else:
            del self._rows_of_shape[shape]
            self._cold_shapes.add(shape)

    # -- the careful part --

    def _look(
        self, raw: bytes, form: bytes, number: int, offset: int, progress: int, candidates: tuple[int, ...]
    ) -> Collection[int]:
        """
        Decode a line and show it to the traceback parser and to rules.

        :return: the rules that no line of the same form can match.
        """
        text = clean(raw if len(raw) <= _LINE_BYTES else self._part_of(raw, candidates))
        if not text:
            if self._parser.wants_lines:
                self._parser.see(split(""), number, offset, None, progress)
            return ()
        line = split(text)
        rank = rank_of(line)
        trace = self._parser.see(line, number, offset, rank, progress)
        if not candidates or (trace is not None and trace["id"] == -1):
            return ()
        matched, spent = self.rules.match(candidates, text, trace is not None, form.lower())
        if matched:
            level = level_of(text)
            for name in matched:
                self._note(name, number, offset, rank, text, progress, trace, level)
        return () if trace is not None else spent

    def _part_of(self, raw: bytes, candidates: tuple[int, ...]) -> bytes:
        """Of a very long line, the part around the first word that a rule looks for; its start where there is none."""
        lowered = raw.lower()
        places = [place for index in candidates for place in self.rules.places(index, lowered)]
        start = max(0, min(places, default=0) - _LINE_BYTES // 4)
        return raw[start : start + _LINE_BYTES]

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


def _ends_of(line: bytes) -> bytes:
    half = _LONG_BYTES // 2
    return line[:half] + b" " + line[-half:]
