"""What shows that a training advances, whatever the line is made of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpualert.progress import is_progress

#: Most seconds for all hostile lines together; when one is tried from every place again and again, it takes minutes.
DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("form", "advances"),
    [
        (b"{'loss': ., 'epoch': .}", True),
        (b"train/lm_loss_avg: .e-", True),
        (b"mean_" + b"loss" + b"_of_all_tasks" * 5 + b"=.", True),
        (b"loss=nan", False),
        (b"lossless", False),
        (b" %|###  | / [:<:, .it/s, v_num=, train_loss_step=.]", True),
        (b"downloading shards: %|##  | / [:<:, .s/it]", False),
        (b"epoch [/] done", True),
        (b"step by step", False),
    ],
)
def test_a_folded_line_advances_or_not(form: bytes, advances: bool) -> None:
    """Metrics, counters and bars with finite numbers do; other uses of their words do not."""
    assert is_progress(form) is advances


def test_no_line_takes_long() -> None:
    """Words of the patterns, repeated to a long line, are judged within the deadline, all together."""
    program = (
        "from gpualert.progress import is_progress\n"
        "units = (b'loss', b'loss_', b'loss/', b'ppl', b'acc', b'reward', b'| / [', b'step', b'iter ', b'[')\n"
        "for unit in units:\n"
        "    assert is_progress(unit * (4000 // len(unit))) in (True, False)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout == "done\n", done.stderr
