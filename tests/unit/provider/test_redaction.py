"""Secrets do not get out, in whatever form and pieces they are printed."""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert_provider.redaction import Redactor, redact

SECRET = "s3cr/et+Wört 'x'\"y"
_plain = st.text(st.characters(codec="utf-8"), min_size=4, max_size=30)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in zip(marks, marks[1:], strict=False)]


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join(stream.feed(piece) for piece in pieces) + stream.finish()


@given(st.binary(max_size=40), _plain, st.binary(max_size=40), st.data())
def test_a_secret_split_at_any_byte_is_caught(before: bytes, secret: str, after: bytes, data: st.DataObject):
    """Wherever chunks end, none of the secret's bytes come out, and nothing else is lost."""
    raw = secret.encode()
    whole = before + raw + after
    at = data.draw(st.integers(0, len(raw)))

    out = streamed(Redactor([secret], airflow=False), [before + raw[:at], raw[at:] + after])

    assert len(out) == len(whole)
    assert out[len(before) : len(before) + len(raw)] == b"*" * len(raw)


@given(st.lists(_plain, min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=12), st.data())
def test_streaming_gives_what_the_whole_gives(secrets: list[str], cuts: list[int], data: st.DataObject):
    """Chunks are an accident of transport: they must not show in the result, even where secrets overlap."""
    part = st.one_of(st.sampled_from(secrets), st.sampled_from([s[:3] for s in secrets]), st.text(max_size=5))
    text = "".join(data.draw(st.lists(part, max_size=12))).encode()
    redactor = Redactor(secrets, airflow=False)

    assert redactor.data(text) == streamed(redactor, cut(text, cuts))


def test_overlapping_secrets_are_both_covered():
    """The end of one secret may be the beginning of another."""
    assert "*" * 9 == Redactor(["abcdef", "defghi"], airflow=False)("abcdefghi")


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        urllib.parse.quote(SECRET, safe=""),
        urllib.parse.quote(SECRET),
        urllib.parse.quote_plus(SECRET),
        re.sub("%..", lambda m: m.group().lower(), urllib.parse.quote(SECRET, safe="")),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
    ],
)
def test_the_forms_in_which_programs_print_a_secret_are_masked(form: str):
    """URL, JSON and Python forms; the text around them stays."""
    shown = Redactor([SECRET], airflow=False)(f"before {form} after")

    assert shown.startswith("before ") and shown.endswith(" after")
    assert not any(part in shown.lower() for part in ("s3cr", "et+w", "wört", "w\\u00f6rt"))


@pytest.mark.parametrize("prefix", ["", "u", "us", "user:", "Basic user:"])
@pytest.mark.parametrize("suffix", ["", ":x", "\n"])
def test_base64_of_the_secret_inside_something_longer_is_masked(prefix: str, suffix: str):
    """An Authorization header encodes user and password together, which shifts the password's letters."""
    secret = "hf_AbCdEf0123456789"
    encoded = base64.b64encode((prefix + secret + suffix).encode()).decode()

    shown = Redactor([secret], airflow=False)(encoded)

    # What is left of it, decoded, does not hold four letters of the secret in a row.
    left = base64.b64decode(shown.replace("*", "A"))
    assert not any(secret[i : i + 4].encode() in left for i in range(len(secret) - 3)), shown


def test_masks_keep_the_length_in_bytes():
    """Offsets into the log hold for its masked copy."""
    text = f"a {SECRET} ü {SECRET}"

    assert len(text.encode()) == len(Redactor([SECRET], airflow=False)(text).encode())


def test_lines_of_a_multi_line_secret_are_masked_one_by_one():
    """A key is often printed with a prefix on each line; its BEGIN line is no secret."""
    key = "-----BEGIN KEY-----\nMIIabcdefgh\nQRSTuvwxyz12\n-----END KEY-----"
    shown = Redactor([key], airflow=False)("> -----BEGIN KEY-----\n> MIIabcdefgh\n> QRSTuvwxyz12")

    assert shown == "> -----BEGIN KEY-----\n> ***********\n> ************"


def test_too_short_a_secret_is_refused_aloud(caplog: pytest.LogCaptureFixture):
    """Masking "ab" would ruin every log; not masking it must not happen silently, nor by naming it."""
    with caplog.at_level(logging.WARNING):
        redactor = Redactor(["ab", "longer-secret"], airflow=False)

    assert redactor.too_short == 1 and redactor("ab longer-secret") == "ab *************"
    assert "fewer than 4 characters" in caplog.text and "ab" not in caplog.text.split("fewer")[0].split()


def test_what_airflows_masker_knows_is_masked_too():
    """Connections' passwords are told to it by Airflow itself."""
    from airflow.sdk._shared.secrets_masker import _secrets_masker, reset_secrets_masker

    try:
        _secrets_masker().add_mask("airflow-knows-this")
        assert redact("x airflow-knows-this y") == "x ****************** y"
    finally:
        reset_secrets_masker()


def test_values_are_redacted_wherever_they_stand():
    """One function for text and for all that is made of it."""
    redactor = Redactor(["hunter22"], airflow=False)

    assert redact({"a hunter22": ["hunter22", 1, None, {"b": "x"}]}, redactor) == {
        "a ********": ["********", 1, None, {"b": "x"}]
    }
    assert "hunter22" not in repr(redactor)
