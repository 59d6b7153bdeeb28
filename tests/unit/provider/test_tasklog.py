"""Every line of a training's log reaches the task log once, harmless, and within a ceiling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert_provider.redaction import Redactor
from gpualert_provider.tasklog import PARTIAL_AGE_S, Position, Record, TaskLogWriter, harmless, log_budget

NO_MASK = Redactor(airflow=False)


class Sink:
    """A task log, and a writer for it."""

    def __init__(self, redactor: Redactor = NO_MASK, **how: object) -> None:
        self.records: list[Record] = []
        self.writer = TaskLogWriter(self.records.append, redactor, **how)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        return "\n".join(record.text for record in self.records)

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n") if self.records else []


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]))), st.lists(st.integers(1)))
def test_lines_come_out_as_they_went_in_however_they_were_cut(lines: list[str], cuts: list[int]):
    """A multi-byte character, or a line, that chunk edges cut is whole again; nothing is replaced or repeated."""
    data = "".join(line + "\n" for line in lines).encode()
    sink = Sink()
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for tick, (start, stop) in enumerate(zip(marks, marks[1:], strict=False)):
        sink.writer.feed(0, start, data[start:stop])
        sink.writer.flush(float(tick) / 10)
    sink.writer.flush(99.0, final=True)

    assert sink.lines == lines
    assert sink.writer.position == Position(0, len(data)) and sink.writer.replaced_characters == 0


@given(st.data())
def test_a_follower_that_takes_over_at_the_acknowledged_position_repeats_and_loses_nothing(data: st.DataObject):
    """Whatever was fed and not emitted is not acknowledged, so the next follower is sent it."""
    log = "".join(f"line {n} ü\n" for n in range(50)).encode()
    at = data.draw(st.integers(0, len(log)))
    first = Sink()
    first.writer.feed(0, 0, log[:at])
    first.writer.flush(0.0)
    resumed_at = first.writer.position

    second = Sink(start=resumed_at)
    second.writer.feed(0, resumed_at.offset_bytes, log[resumed_at.offset_bytes :])
    second.writer.flush(0.0, final=True)

    assert first.lines + second.lines == log.decode().splitlines()


def test_bytes_that_come_twice_are_printed_once():
    """After a new connection the host may send again what was already taken."""
    sink = Sink()
    sink.writer.feed(0, 0, b"one\ntwo\nthr")
    sink.writer.flush(0.0)
    sink.writer.feed(0, 4, b"two\nthree\n")
    sink.writer.flush(1.0)

    assert sink.lines == ["one", "two", "three"]


def test_many_lines_are_one_record_and_a_record_is_bounded():
    """A record costs the triggerer the same whatever its size."""
    sink = Sink(record_bytes=1000)
    sink.writer.feed(0, 0, b"0123456789\n" * 300)
    sink.writer.flush(0.0)

    assert len(sink.records) == 4 and all(len(record.text) <= 1000 for record in sink.records)
    assert sum(record.lines for record in sink.records) == 300


def test_a_line_without_end_is_shown_after_a_while_and_never_cut_in_a_character():
    """``Loading… `` without a line break is all that some programs say for minutes."""
    sink = Sink()
    data = "wait … ü".encode()
    sink.writer.feed(0, 0, data[:-1])
    assert not sink.writer.flush(0.0)
    assert sink.writer.flush(PARTIAL_AGE_S)

    assert sink.lines == ["wait … "] and sink.writer.position == Position(0, len("wait … ".encode()))
    sink.writer.feed(0, len(data) - 1, data[-1:] + b" done\n")
    sink.writer.flush(PARTIAL_AGE_S + 1)
    assert sink.lines == ["wait … ", "ü done"]


def test_a_progress_bar_shows_its_last_state():
    """tqdm redraws one line for hours; a terminal would show only the end of it."""
    sink = Sink()
    sink.writer.feed(0, 0, b"\r 10%|#   |\r 20%|##  |\r 30%|###")
    sink.writer.flush(0.0)
    sink.writer.flush(PARTIAL_AGE_S)
    assert sink.lines == [" 20%|##  |"]

    sink.writer.feed(0, sink.writer.end.offset_bytes, b" |\r100%|####|\nnext\r\n")
    sink.writer.flush(PARTIAL_AGE_S + 1)
    assert sink.lines == [" 20%|##  |", "100%|####|", "next"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mError\x1b[0m", "Error"),
        ("\x1b[2J\x1b[Hgone", "\\x1b[2J\\x1b[Hgone"),
        ("\x1b]0;title\x07x", "\\x1b]0;title\\x07x"),
        ("a\tb\x00c\x08", "a\tb\\x00c\\x08"),
        ("\x9b31mx", "\\x9b31mx"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
    ],
)
def test_control_characters_are_visible_instead_of_active(raw: str, shown: str):
    """A log must not move the cursor of whoever reads it, nor turn the text around. Colours say nothing here."""
    assert shown == harmless(raw)


def test_what_is_no_utf8_is_replaced_and_counted():
    """A loader's NUL bytes and cut images happen; a character that really is U+FFFD does not count."""
    sink = Sink()
    sink.writer.feed(0, 0, b"ok \xff\xfe \xef\xbf\xbd\n")
    sink.writer.flush(0.0)

    assert sink.lines == ["ok \ufffd\ufffd \ufffd"] and sink.writer.replaced_characters == 2


def test_a_secret_over_a_chunk_edge_is_masked_and_offsets_hold():
    """Bytes that may begin a secret wait for the next chunk, and are not acknowledged before."""
    sink = Sink(Redactor(["hunter22"], airflow=False))
    sink.writer.feed(0, 0, b"x\nkey=hunt")
    sink.writer.flush(0.0)
    assert sink.writer.position == Position(0, 2) and sink.writer.end == Position(0, 10)
    sink.writer.feed(0, 10, b"er22\n")
    sink.writer.flush(1.0, final=True)

    assert sink.lines == ["x", "key=********"] and sink.writer.position == Position(0, 15)


def test_what_is_skipped_is_told_in_its_place_and_dealt_with():
    """Lines before it, its number and where all of them are, lines after it; it may be acknowledged."""
    sink = Sink(log_path="/runs/1/log")
    sink.writer.feed(0, 0, b"head\npart")
    sink.writer.skip(Position(0, 50_000), 1234)
    assert sink.writer.position == sink.writer.end == Position(0, 50_000)
    sink.writer.feed(0, 50_000, b"tail\n")
    sink.writer.skip(Position(0, 60_000), 7, at_least=True)
    sink.writer.flush(0.0, final=True)

    assert sink.lines == [
        "head",
        "part",
        "[1,234 lines not shown; all of them at /runs/1/log]",
        "tail",
        "[at least 7 lines not shown; all of them at /runs/1/log]",
    ]
    assert sink.writer.position == Position(0, 60_000)


def test_no_mask_reaches_over_what_is_skipped():
    """Half a secret before, its other half after: they are no secret, and what follows is not masked for it."""
    sink = Sink(Redactor(["hunter22"], airflow=False))
    sink.writer.feed(0, 0, b"a hunt")
    sink.writer.skip(Position(0, 100), 3)
    sink.writer.feed(0, 100, b"er22 b hunter22\n")
    sink.writer.flush(0.0, final=True)

    assert sink.lines[0] == "a hunt" and sink.lines[-1] == "er22 b ********"
    assert sink.writer.position == Position(0, 116)


def test_a_skip_that_comes_twice_is_told_once():
    """A host that repeats what the writer has passed already."""
    sink = Sink()
    sink.writer.skip(Position(0, 100), 3)
    sink.writer.skip(Position(0, 100), 3)

    assert len(sink.records) == 1


def test_a_skip_into_a_new_generation_tells_of_the_cut():
    """The log was cut by its writer, and nothing of its new beginning is shown."""
    sink = Sink(start=Position(0, 10))
    sink.writer.skip(Position(1, 100), 3)

    assert "truncated" in sink.lines[0] and "3 lines not shown" in sink.lines[1]
    assert sink.writer.position == Position(1, 100)


def test_a_budget_is_the_ceiling_in_two_parts():
    """Head and tail together; none for no ceiling."""
    budget = log_budget(100_000)

    assert budget is not None and budget["head_bytes"] + budget["tail_bytes"] == 100_000
    assert log_budget(None) is None


def test_a_truncated_log_is_told_and_goes_on():
    """`> /dev/stderr` in a shell script cuts the log: a new generation begins at 0."""
    sink = Sink()
    sink.writer.feed(0, 0, b"old\npartial")
    sink.writer.flush(0.0)
    sink.writer.feed(1, 0, b"new\n")
    sink.writer.flush(1.0)

    assert sink.lines[:2] == ["old", "partial"] and "truncated" in sink.lines[2] and sink.lines[3] == "new"
    assert sink.writer.position == Position(1, 4)


def test_a_large_burst_is_cut_into_records_in_linear_time():
    """20 MB at once: copying what is left for each record would move 3 GB."""
    sink = Sink(record_bytes=64 * 1024)
    data = b"0123456789abcdef\n" * (20_000_000 // 17)
    sink.writer.feed(0, 0, data)
    sink.writer.flush(0.0)

    assert sink.writer.position.offset_bytes == len(data) and len(sink.records) < 320


def test_the_hosts_time_stands_on_the_record():
    """A line that arrives an hour late was not written an hour late."""
    sink = Sink()
    sink.writer.feed(0, 0, b"a\n", 1000.5)
    sink.writer.flush(0.0)

    assert [record.time for record in sink.records] == [1000.5]


def test_a_budget_spreads_the_work_and_loses_nothing():
    """What Airflow's triggerer does not take yet must not be pushed at it; calling again goes on where it stopped."""
    sink = Sink(record_bytes=100)
    data = b"".join(b"line %03d\n" % n for n in range(100))
    sink.writer.feed(0, 0, data)
    calls = 0
    while True:
        calls += 1
        sink.writer.flush(0.0, final=True, budget_bytes=100)
        if not sink.writer.more:
            break

    assert calls > 5 and sink.text == data.decode().rstrip() and sink.writer.position == Position(0, len(data))


def test_what_is_dropped_is_told_before_what_follows_and_only_then_dealt_with():
    """Of more than fits the newer half stays, in whole lines; until it is told, nothing of it may be acknowledged."""
    sink = Sink()
    out, writer = sink.records, sink.writer
    writer.feed(0, 0, b"first\n")
    writer.flush(0.0)
    acknowledged = writer.position
    writer.feed(0, 6, b"".join(b"line %02d\n" % n for n in range(100)))
    writer.drop_beyond(400)
    assert writer.position == acknowledged and writer.waiting_bytes <= 200

    writer.feed(0, 806, b"last\n")
    writer.drop_beyond(100)
    writer.flush(1.0)

    texts = [record.text for record in out]
    shown = texts[-1].split("\n")
    assert texts[0] == "first" and shown[-1] == "last"
    assert texts[1] == f"[{101 - len(shown)} lines not shown; all of them at the run directory on the host]"
    assert writer.position == writer.end == Position(0, 811)


def test_less_than_the_limit_is_not_dropped_and_neither_is_a_single_line():
    sink = Sink()
    out, writer = sink.records, sink.writer
    writer.feed(0, 0, b"a\nb\n")
    writer.drop_beyond(4)
    writer.feed(0, 4, b"x" * 1000)
    writer.drop_beyond(100)
    writer.flush(0.0, final=True)

    assert "".join(record.text for record in out).count("x") == 1000 and out[0].text == "a\nb"
