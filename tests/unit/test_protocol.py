"""The client's end of the wire: any cut of the stream means the same, and nothing that comes can crash it."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert import archive, protocol
from gpualert.errors import InvalidSpec, ProtocolError
from gpualert.key import Attempt, LaunchKey
from gpualert.protocol import ArchiveWanted, Closed, Conversation, Decoder, Frame, Hello, HostError, NotOurs, encode
from gpualert.spec import LaunchSpec

NONCE = "0123456789abcdef"
START = f"\ngpualert-{NONCE} start\n".encode()
HELLO = {"type": "hello", "protocol": 1, "version": "0.1.0"}
MANY = settings(max_examples=150, deadline=None)


def conversation() -> Conversation:
    return Conversation(nonce=NONCE, local=True)


def told(header: dict, payload: bytes = b"") -> bytes:
    return encode(Frame(header, payload))


def events_of(pieces: list[bytes], *, local: bool = True) -> list[protocol.Event]:
    talk = Conversation(nonce=NONCE, local=local)
    events = [event for piece in pieces for event in talk.receive(piece)]
    return events + talk.receive_end()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(data) + 1) for position in at), len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
replies = st.sampled_from(sorted(protocol.REPLIES - {"hello", "need"}))
frames = st.builds(
    lambda kind, fields, payload: Frame({**fields, "type": kind}, payload),
    replies,
    st.dictionaries(st.text(max_size=8), json_values, max_size=4),
    st.binary(max_size=200),
)


@MANY
@given(noise=st.binary(max_size=300), after=st.lists(frames, max_size=5), at=st.lists(st.integers(0, 10_000)))
def test_any_cut_of_the_stream_gives_the_same_events(noise: bytes, after: list[Frame], at: list[int]) -> None:
    """Noise, marker, hello and frames, in whatever pieces the network brings them."""
    stream = noise + START + told(HELLO) + b"".join(map(encode, after))
    assert events_of(cut(stream, at)) == [Hello(HELLO), *after, Closed(0)]


@MANY
@given(tail=st.binary(max_size=400), at=st.lists(st.integers(0, 1000)))
def test_any_bytes_after_the_marker_are_survived_alike(tail: bytes, at: list[int]) -> None:
    """Rubbish ends in an event, and the cut does not matter."""
    stream = START + told(HELLO) + tail
    assert events_of(cut(stream, at)) == events_of([stream])


@MANY
@given(head=st.binary(max_size=400), at=st.lists(st.integers(0, 1000)))
def test_any_bytes_before_the_marker_are_survived_alike(head: bytes, at: list[int]) -> None:
    """A far end that never speaks our language is not ours."""
    found = events_of(cut(head, at))
    assert found == events_of([head])
    assert [type(event) for event in found] == [NotOurs]


@MANY
@given(value=frames, limit=st.just(protocol.MAX_JSON_BYTES))
def test_a_frame_survives_the_wire(value: Frame, limit: int) -> None:
    """Text of any script, numbers, and raw bytes."""
    assert Decoder(limit).feed(encode(value)) == [value]


def test_text_that_is_no_utf8_survives_the_wire() -> None:
    """File names come as lone surrogates."""
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert Decoder().feed(told({"type": "record", "cwd": name}))[0].header["cwd"] == name


def test_what_json_has_not_cannot_be_sent() -> None:
    """NaN would make the other end's parser fail, or worse, not fail."""
    with pytest.raises(ProtocolError, match="record"):
        told({"type": "record", "loss": float("nan")})


RUBBISH = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no type": b"{}",
    "type is no text": b'{"type": 1}',
    "no UTF-8": b'{"type": "log\xff"}',
    "NaN": b'{"type": "log", "time": NaN}',
    "deep": b'{"type": "log", "a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "endless number": b'{"type": "log", "a": ' + b"9" * 900_000 + b"}",
    "unknown type": b'{"type": "dance"}',
    "a second hello": json.dumps(HELLO).encode(),
    "an archive again": b'{"type": "need", "digest": "d"}',
}


@pytest.mark.parametrize("name", RUBBISH)
def test_rubbish_in_a_frame_is_a_protocol_error(name: str) -> None:
    """It is told as an event, what came before it still counts, and nothing more is heard."""
    text = RUBBISH[name]
    talk = conversation()
    good = Frame({"type": "beat"})
    events = talk.receive(START + told(HELLO) + encode(good) + struct.pack("!II", len(text), 0) + text + encode(good))
    assert events[:2] == [Hello(HELLO), good]
    assert [(type(e), e.kind) for e in events[2:] if isinstance(e, NotOurs)] == [(NotOurs, "protocol")]
    assert len(events) == 3 and talk.over
    assert talk.receive(encode(good)) == [] == talk.receive_end()


@pytest.mark.parametrize("sizes", [(2**32 - 1, 0), (0, 2**32 - 1), (protocol.MAX_JSON_BYTES + 1, 0)])
def test_huge_lengths_are_refused_before_anything_is_kept(sizes: tuple[int, int]) -> None:
    """Eight bytes decide."""
    talk = conversation()
    events = talk.receive(START + told(HELLO) + struct.pack("!II", *sizes))
    assert isinstance(events[-1], NotOurs) and events[-1].kind == "protocol"
    assert "at most" in events[-1].message


def test_endless_noise_is_given_up() -> None:
    """At most a MiB before the marker; its end is in the message."""
    talk = conversation()
    events: list[protocol.Event] = []
    for _ in range(40):
        events += talk.receive(b"y\n" * 20_000)
    assert [(type(e), e.kind) for e in events if isinstance(e, NotOurs)] == [(NotOurs, "shell")]
    assert "y\ny" in events[0].message  # type: ignore[union-attr]


def test_just_enough_noise_is_borne() -> None:
    """The limit is exact, however the stream is cut."""
    at_limit = b"x" * protocol.MAX_NOISE_BYTES + START + told(HELLO)
    above = b"x" + at_limit
    for pieces in ([at_limit], cut(at_limit, [protocol.MAX_NOISE_BYTES + 5])):
        assert events_of(pieces)[0] == Hello(HELLO)
    for pieces in ([above], cut(above, [protocol.MAX_NOISE_BYTES + 5])):
        assert isinstance(events_of(pieces)[0], NotOurs)


def test_what_the_host_printed_cannot_drive_a_terminal() -> None:
    """It goes into error texts and task logs."""
    talk = conversation()
    talk.receive(b"\x1b[2J\x1b]0;owned\x07Account expired\r\n\xff\xfe")
    (event,) = talk.receive_end(1, b"\x1b[31mstderr too")
    assert isinstance(event, NotOurs) and event.kind == "shell"
    assert "Account expired" in event.message and "stderr too" in event.message and "status 1" in event.message
    assert "\x1b" not in event.message and "\r" not in event.message and "\x07" not in event.printed


def test_the_noise_is_kept_for_whoever_gives_up_waiting() -> None:
    """A far end that says something and then hangs."""
    talk = conversation()
    talk.receive(b"Password expired. New password: ")
    assert talk.printed == "Password expired. New password:"


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("error no_python ", "no_python", "remote_python"),
        ("error python_too_old python3 (Python 3.6.8), ", "python_too_old", "python3 (Python 3.6.8)"),
        ("error something else", "protocol", "something else"),
        ("stop", "protocol", "stop"),
    ],
)
def test_errors_on_the_marked_line(line: str, kind: str, words: str) -> None:
    """What stage 2 can say before any Python runs."""
    (event,) = conversation().receive(f"noise\ngpualert-{NONCE} {line}\nmore".encode())
    assert isinstance(event, NotOurs) and event.kind == kind
    assert words in event.message and event.printed == "noise"


def test_another_conversations_marker_is_noise() -> None:
    """The nonce is ours alone."""
    talk = conversation()
    assert talk.receive(b"\ngpualert-ffff start\n" + told(HELLO)) == []


@pytest.mark.parametrize("spoken", [0, 2, None, "1", True])
def test_another_protocol_version_is_named(spoken: object) -> None:
    """Versions are agreed on before anything else is said."""
    (event,) = conversation().receive(START + told({**HELLO, "protocol": spoken}))
    assert isinstance(event, NotOurs) and event.kind == "protocol" and "version" in event.message


def test_an_error_instead_of_hello_keeps_its_kind() -> None:
    """The receiver's own errors come as frames."""
    (event,) = conversation().receive(START + told({"type": "error", "kind": "no_root", "message": "nowhere"}))
    assert event == NotOurs("no_root", "nowhere", "")


def test_a_request_travels_with_the_bootstrap() -> None:
    """One round trip: nothing has been heard yet, and the request is already among the bytes to send."""
    talk = Conversation(nonce=NONCE)
    talk.send(protocol.list_request())
    assert talk.data_to_send().endswith(told({"type": "list"}))
    assert talk.data_to_send() == b""


def test_the_archive_is_sent_when_it_is_asked_for() -> None:
    """Once, and only the one that was offered."""
    talk = Conversation(nonce=NONCE)
    talk.data_to_send()
    ours = archive.build()
    need = {"type": "need", "digest": ours.digest, "size": len(ours.data)}
    assert talk.receive(START + told(need)) == [ArchiveWanted(need["digest"], need["size"])]
    data = talk.data_to_send()
    json_size, size = struct.unpack("!II", data[:8])
    assert len(data) == 8 + json_size + size
    assert zlib.decompress(data[8 + json_size :]) == ours.data
    (event,) = talk.receive(told(need))
    assert isinstance(event, NotOurs) and event.kind == "protocol"


def test_an_archive_that_was_not_offered_is_not_sent() -> None:
    """A host cannot make us send something else."""
    talk = Conversation(nonce=NONCE)
    talk.data_to_send()
    (event,) = talk.receive(START + told({"type": "need", "digest": "other", "size": 1}))
    assert isinstance(event, NotOurs) and talk.data_to_send() == b""


def test_an_end_within_a_frame_is_told() -> None:
    """Closed says how many bytes of an unfinished frame there were."""
    talk = conversation()
    talk.receive(START + told(HELLO) + b"\0\0\0")
    assert talk.receive_end(0) == [Closed(3)]


def test_a_launch_that_is_too_large_is_the_callers_error() -> None:
    """It is found before anything is sent."""
    spec = LaunchSpec("true", env={f"V{n}": "x" * 100_000 for n in range(90)})
    with pytest.raises(InvalidSpec, match="at most"):
        conversation().send(protocol.launch_request(LaunchKey(["a"], "a"), Attempt(1, "i"), spec))


def test_a_command_of_four_mebibytes_can_be_sent() -> None:
    """The largest that a spec accepts, in a script of another alphabet."""
    spec = LaunchSpec("# " + "é" * (2 * 1024 * 1024 - 16))
    talk = conversation()
    talk.send(protocol.launch_request(LaunchKey(["a"], "a"), Attempt(1, "i"), spec))
    (frame,) = Decoder(protocol.MAX_REQUEST_BYTES).feed(talk.data_to_send())
    assert LaunchSpec.from_json(frame.header["spec"]) == spec


def test_an_error_frame_becomes_a_host_error() -> None:
    """Whatever a hostile host put into it."""
    error = HostError.from_frame({"type": "error", "kind": "superseded", "message": "m", "details": {"seen": 4}})
    assert (error.kind, str(error), error.details) == ("superseded", "m", {"seen": 4})
    odd = HostError.from_frame({"type": "error", "kind": None, "message": None, "details": [1]})
    assert odd.kind == "internal" and odd.details == {}
