"""Figures of a corpus, what differs between two sets of rules, and how false certainty is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpualert import false_certainty
from gpualert.evaluate import Said, compare, exit_of, load, macro_f1, main, save
from gpualert.false_certainty import Case, measure, robbed

LABELS = [
    {"id": "a", "class": "cuda_oom", "alternates": []},
    {"id": "b", "class": "hang", "alternates": ["nccl"]},
    {"id": "c", "class": "nccl", "alternates": []},
    {"id": "d", "class": "nccl", "alternates": []},
    {"id": "e", "class": "segfault", "alternates": []},
]


def answer(log_id: str, said: str, line: int = 1) -> Said:
    return Said(log_id, said, line, "x.y")


def test_each_kind_of_difference_is_told() -> None:
    """Fixed, broken, as wrong as before, right in another way, right by another line; what is equal is not shown."""
    before = [
        answer("a", "unknown"),
        answer("b", "hang"),
        answer("c", "nccl"),
        answer("d", "hang"),
        answer("e", "segfault"),
    ]
    now = [
        answer("a", "cuda_oom"),
        answer("b", "nccl"),
        answer("c", "hang"),
        answer("d", "unknown"),
        answer("e", "segfault", 9),
    ]

    found = compare(LABELS, before, now)

    assert [(item.kind, item.log_id) for item in found] == [
        ("broken", "c"),
        ("fixed", "a"),
        ("still wrong", "d"),
        ("also right", "b"),
        ("root line", "e"),
    ]
    assert not compare(LABELS, now, now)
    assert not compare(LABELS, before[:1], now[1:]), "a log that one side lacks cannot be compared"


def test_answers_can_be_stored_and_read_again(tmp_path: Path) -> None:
    """Before the code changes they are written down; what is no answer says where."""
    path = tmp_path / "before.jsonl"
    answers = (answer("a", "unknown"), Said("b", "success", None, None))
    save(answers, str(path))

    assert load(str(path)) == answers
    path.write_text('{"id": "a"}\n')
    with pytest.raises(ValueError, match="line 1: expected an answer"):
        load(str(path))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "oom.log").write_text("start\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    (tmp_path / "logs" / "lab.log").write_text("start\nlicense checkout failed: no seats\n")
    labels = [
        {"id": "oom", "class": "cuda_oom", "alternates": [], "exit_code": 1, "root_lines": [2]},
        {"id": "lab", "class": "usage_error", "alternates": [], "exit_code": 1, "root_lines": [2]},
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    (tmp_path / "mine.toml").write_text(
        'silence = ["cuda_oom.torch"]\n[[rule]]\nname = "lab.licence"\nwords = ["license checkout"]\n'
        'pattern = \'license checkout failed\'\nclass = "usage_error"\nrole = "root"\n'
    )
    return tmp_path


def test_two_sets_of_rules_are_compared_log_by_log(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each log that the user's rules fixed or broke."""
    arguments = [str(corpus / "labels.jsonl"), str(corpus / "logs")]

    assert main([*arguments, "--rules", str(corpus / "mine.toml"), "--against", "builtin"]) == 0

    told = capsys.readouterr().out
    assert "compared with builtin: 1 broken, 1 fixed" in told
    assert "lab  usage_error: unknown (exit) -> usage_error (lab.licence)" in told


def test_two_versions_are_compared_by_what_the_first_wrote(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answers of the code as it was are a file; the code as it is reads them."""
    arguments = [str(corpus / "labels.jsonl"), str(corpus / "logs")]
    before = str(corpus / "before.jsonl")

    assert main([*arguments, "--save", before]) == 0
    assert main([*arguments, "--against", before]) == 0

    assert "before.jsonl: no difference" in capsys.readouterr().out


def test_robbed_logs_keep_what_they_are_said_to_keep() -> None:
    """Nothing from the root line on, half of the lines, the last twenty, every second one, all in another order."""
    lines = [b"line %d" % number for number in range(1, 101)]
    label = {"id": "x", "class": "nccl", "alternates": ["hang"], "exit_code": 0, "root_lines": [40, 41]}

    cases = list(robbed(label, b"\n".join(lines) + b"\n"))

    by_kind = {case.kind: case.data.splitlines() for case in cases}
    assert by_kind["cut before the first root line"] == lines[:39]
    assert by_kind["cut in the middle"] == lines[:50]
    assert by_kind["last 20 lines only"] == lines[-20:]
    assert by_kind["every second line dropped"] == lines[::2]
    shuffled = [case.data.splitlines() for case in cases if case.kind == "lines shuffled"]
    assert len(shuffled) == 3 and all(sorted(one) == sorted(lines) != one for one in shuffled)
    assert cases[0].accepted == {"nccl", "hang", "success"}
    assert not {"success"} & next(iter(robbed({**label, "exit_code": 1}, b"x"))).accepted


def test_only_a_made_up_cause_is_counted() -> None:
    """`unknown` and what is accepted are right; the table names the share, the list the rule."""
    oom = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    cases = [
        Case("kind", "silent", b"hello\n", 1, frozenset()),
        Case("kind", "right", oom, 1, frozenset({"cuda_oom"})),
        Case("kind", "made up", oom, 1, frozenset({"nccl"})),
    ]

    (tally,) = measure(cases)

    assert (tally.cases, tally.unknown, len(tally.wrong)) == (3, 1, 1)
    assert tally.percent == pytest.approx(100 / 3)
    assert "33.3 %" in false_certainty.table([tally])
    assert "nccl -> cuda_oom  [cuda_oom.torch] made up" in false_certainty.wrong_ones([tally])


def test_macro_f1_is_the_mean_over_labels() -> None:
    """A class that is only ever an answer has no F1 of its own."""
    assert macro_f1([("a", "a"), ("b", "c")]) == 0.5
    assert macro_f1([]) == 0.0


def test_a_label_tells_the_end_by_code_or_by_signal() -> None:
    """A shell's code says what people had; a signal alone is what wait(2) told."""
    assert exit_of({"exit_code": 137, "signal": "SIGKILL"}) == (137, None)
    assert exit_of({"exit_code": None, "signal": "SIGKILL"}) == (None, 9)
    assert exit_of({}) == (None, None)
    with pytest.raises(ValueError, match="label x: expected a signal"):
        exit_of({"id": "x", "signal": "SIGNOSUCH"})
