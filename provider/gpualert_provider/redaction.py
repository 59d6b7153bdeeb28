"""The one way out of the house for text: whatever goes to a task log, an XCom, a notice or a page passes through here.

Secrets are known as exact values (those of ``secret_env``, the connection's own, what Airflow's masker has been told),
and
are looked for as they are and in the forms in which programs usually print them. A mask has the length of what it
covers,
in bytes of UTF-8, so that offsets into a log hold for its masked copy too.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

#: Shorter values would mask half of every log; they are not masked, and that is said in a warning.
SHORTEST_SECRET = 4
#: Lines of a secret of several lines (a key) are looked for on their own from this length on.
_SHORTEST_LINE = 8
_log = logging.getLogger(__name__)


class Redactor:
    """
    Masks exact secret values, and the forms in which they are usually printed: URL-quoted, base64, JSON-escaped.

    :param values: the secrets, as text. Empty ones are ignored, too short ones are warned about and ignored.
    :param airflow: mask what Airflow's own masker knows, too.
    """

    def __init__(self, values: Iterable[str] = (), *, airflow: bool = True) -> None:
        self._airflow = airflow
        self._values = tuple(values)
        self.too_short = 0
        forms: set[bytes] = set()
        for value in self._values:
            if not value:
                continue
            if len(value) < SHORTEST_SECRET:
                self.too_short += 1
                continue
            forms |= _forms(value)
        if self.too_short:
            _log.warning(
                "%d secret value(s) have fewer than %d characters and are not masked: so short a text occurs "
                "everywhere.",
                self.too_short,
                SHORTEST_SECRET,
            )
        self._matcher = _Matcher(forms)

    def __call__(self, text: str) -> str:
        """``text`` with every secret in it replaced by asterisks."""
        return self.text(text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def with_values(self, values: Iterable[str]) -> Redactor:
        """One that masks these, too."""
        return Redactor((*self._values, *values), airflow=self._airflow)

    def text(self, text: str) -> str:
        """``text`` with every secret in it replaced by asterisks."""
        if self._matcher.longest:
            data = text.encode("utf-8", "surrogatepass")
            masked = self._matcher.masked(data)
            if masked is not data:
                text = masked.decode("utf-8", "surrogatepass")
        return _mask_airflows(text) if self._airflow else text

    def data(self, data: bytes) -> bytes:
        """The same for bytes; the length stays. What only Airflow's masker knows is masked in text alone."""
        return self._matcher.masked(data)

    def stream(self) -> RedactingStream:
        """For bytes that come in pieces: a secret that is cut anywhere is found nevertheless."""
        return RedactingStream(self._matcher)

    def value(self, value: Any) -> Any:
        """A copy of a JSON-like value with every text in it redacted, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(k) if isinstance(k, str) else k: self.value(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def redact(value: Any, redactor: Redactor | None = None) -> Any:
    """
    Text, or a JSON-like value, fit to be shown.

    :param redactor: knows the task's own secrets; without one, what Airflow's masker knows is masked.
    """
    return (redactor or _AIRFLOW_ONLY).value(value)


class RedactingStream:
    """
    Bytes in, masked bytes out, in whatever pieces they come: the whole output is what masking the whole input gives.

    Bytes that may be the beginning of a secret are held back until the next piece, or :meth:`finish`, decides.
    """

    def __init__(self, matcher: _Matcher) -> None:
        self._matcher = matcher
        self._held = b""
        self._covered = 0  # of the held bytes, this many at their beginning are inside a secret already

    @property
    def held_bytes(self) -> int:
        """How many bytes have gone in and not yet come out."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        return self._take(data, final=False)

    def finish(self) -> bytes:
        """Nothing more will come."""
        return self._take(b"", final=True)

    def _take(self, data: bytes, final: bool) -> bytes:
        if not self._matcher.longest:
            return data
        buffer = self._held + data
        masked, covered_to = self._matcher.masked_with_end(buffer, self._covered)
        keep_from = len(buffer) if final else self._matcher.undecided_from(buffer)
        self._held = buffer[keep_from:]
        self._covered = max(0, covered_to - keep_from)
        return masked[:keep_from]


class _Matcher:
    """All occurrences of a set of byte strings, overlapping ones included."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = sorted(forms, key=len, reverse=True)
        self.longest = len(self._forms[0]) if self._forms else 0

    def masked(self, data: bytes) -> bytes:
        """``data`` itself when nothing was found."""
        return self.masked_with_end(data, 0)[0]

    def masked_with_end(self, data: bytes, covered: int) -> tuple[bytes, int]:
        """
        :param covered: so many bytes at the beginning belong to a secret that began before them.
        :return: masked data, and where the last masked byte ends.
        """
        spans = [(0, covered)] if covered else []
        # One search per form: 24 forms take 100 MB/s, an alternation of them in one expression 4 MB/s (measured).
        for form in self._forms:
            at = data.find(form)
            while at >= 0:
                spans.append((at, at + len(form)))
                at = data.find(form, at + 1)
        if not spans:
            return data, 0
        out = bytearray(data)
        for start, stop in spans:
            out[start:stop] = b"*" * (stop - start)
        return bytes(out), max(stop for _, stop in spans)

    def undecided_from(self, data: bytes) -> int:
        """Where the earliest beginning of a secret stands that the end of ``data`` leaves open."""
        earliest = len(data)
        for form in self._forms:
            at = data.find(form[:1], max(0, len(data) - len(form) + 1))
            while 0 <= at < earliest:
                if form.startswith(data[at:]):
                    earliest = at
                else:
                    at = data.find(form[:1], at + 1)
        return earliest


def _forms(value: str) -> set[bytes]:
    raw = value.encode("utf-8", "surrogatepass")
    texts = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        value.replace("'", "'\"'\"'"),
        value.replace("'", "'\\''"),
    }
    try:
        texts |= {
            quoted
            for safe in ("", "/")
            for quote in (urllib.parse.quote, urllib.parse.quote_plus)
            for quoted in (quote(value, safe=safe), quote(value, safe=safe).replace("%", "%25"))
        }
        texts |= {re.sub(r"%[0-9A-F]{2}", lambda m: m.group().lower(), text) for text in texts if "%" in text}
    except UnicodeError:  # lone surrogates have no URL form
        pass
    lines = [line for line in value.splitlines() if len(line) >= _SHORTEST_LINE and not line.startswith("-----")]
    if len(value.splitlines()) > 1:
        texts |= set(lines)
    forms = {text.encode("utf-8", "surrogatepass") for text in texts}
    forms |= _base64_forms(raw)
    return {form for form in forms if len(form) >= SHORTEST_SECRET}


def _base64_forms(raw: bytes) -> set[bytes]:
    """
    Base64 of the value, alone and inside something longer (``user:password``): what surrounds it shifts it by 0 to 2
    bytes.

    Only characters that depend on the value alone count; a piece of fewer than 5 of them is not looked for.
    """
    forms = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms.add(encode(raw).rstrip(b"="))
        for shift in range(3):
            whole = encode(b"\0" * shift + raw)
            first = (shift * 8 + 5) // 6
            last = (shift + len(raw)) * 8 // 6
            if last - first >= 5:
                # In the middle of something, and as its end (then the last character is the value's own too).
                forms |= {whole[first:last], whole[first:].rstrip(b"=")}
    return forms


def _mask_airflows(text: str) -> str:
    """
    What Airflow's masker knows. Its public function writes three asterisks; with its pattern at hand the length is
    kept.
    """
    try:
        from airflow.sdk._shared.secrets_masker import _secrets_masker

        replacer = _secrets_masker().replacer
        return text if replacer is None else replacer.sub(lambda match: "*" * len(match.group().encode()), text)
    except (ImportError, AttributeError):
        pass
    try:
        from airflow.sdk.log import redact as airflow_redact
    except ImportError:
        return text
    return str(airflow_redact(text))


_AIRFLOW_ONLY = Redactor()
