"""All triggers of one triggerer share one allowance of records."""

from __future__ import annotations

from gpualert_provider.triggers.pace import RECORDS_PER_S, SHORTEST_INTERVAL_S, Pace


class Printer:
    pass


def test_the_interval_grows_with_those_who_print():
    """Never below a second; two thousand triggers print every fourth second each."""
    pace, printers = Pace(), [Printer() for _ in range(2000)]
    assert pace.interval_s() == SHORTEST_INTERVAL_S
    for printer in printers:
        pace.note(printer, True)
    assert pace.interval_s() == 2000 / RECORDS_PER_S
    for printer in printers:
        pace.note(printer, False)
    assert pace.interval_s() == SHORTEST_INTERVAL_S


def test_a_trigger_that_is_gone_counts_no_more():
    """Whatever way it went."""
    pace, printer = Pace(), Printer()
    pace.note(printer, True)
    del printer
    assert len(pace._printing) == 0


def test_first_records_are_spread():
    """Triggers that begin together do not print together."""
    pace = Pace()
    firsts = {pace.first_s() for _ in range(100)}
    assert len(firsts) > 90 and all(0 <= first <= 1.0 for first in firsts)


def test_no_more_records_than_allowed_leave_one_loop():
    """A thousand that want to print at once are spread over two seconds, in order."""
    pace = Pace(lambda: 100.0)
    waits = [pace.reserve_s() for _ in range(1000)]
    assert waits == sorted(waits) and waits[0] == 0.0
    assert 1000 / RECORDS_PER_S - 0.2 < waits[-1] <= 1000 / RECORDS_PER_S
