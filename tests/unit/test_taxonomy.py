"""The vocabularies are closed and complete."""

from __future__ import annotations

from gpualert.taxonomy import (
    CLASS_FACTS,
    DOMAIN_SENTENCES,
    EXCEPTION_CLASSES,
    GENERIC,
    OUTLOOK_SENTENCES,
    FailureClass,
    FailureDomain,
    RetryOutlook,
    coarse_class,
    default_outlook,
)
from tools.generate_failure_classes import TARGET, page

FIFTEEN = (
    "cuda_oom nccl cuda_runtime ram_oom segfault file_not_found permission missing_module div_zero device_mismatch "
    "nan_loss oom_killer traceback assertion runtime_error"
).split()


def test_every_word_has_its_sentence() -> None:
    """One sentence each, so that a reference page can be made from it."""
    assert set(CLASS_FACTS) == set(FailureClass)
    assert set(DOMAIN_SENTENCES) == set(FailureDomain)
    assert set(OUTLOOK_SENTENCES) == set(RetryOutlook)
    for facts in CLASS_FACTS.values():
        assert facts.sentence.endswith(".") and facts.advice.endswith(".")


def test_the_fifteen_keep_their_names_and_map_to_themselves() -> None:
    """Who knows the coarse names finds them; the refinements map into them or to generic."""
    assert len(FailureClass) == 43
    for name in FIFTEEN:
        assert coarse_class(FailureClass(name)) == name
    assert {coarse_class(item) for item in FailureClass} == {*FIFTEEN, GENERIC}


def test_success_is_not_retried_and_unknown_once() -> None:
    """Two outlooks on which policies lean."""
    assert default_outlook(FailureClass.SUCCESS) == (RetryOutlook.NOT_APPLICABLE, RetryOutlook.NOT_APPLICABLE)
    assert default_outlook(FailureClass.UNKNOWN) == (RetryOutlook.ONCE, RetryOutlook.ONCE)


def test_exception_names_are_last_parts() -> None:
    """They are compared with the last part of a dotted name."""
    assert not [name for name in EXCEPTION_CLASSES if "." in name]


def test_the_reference_page_is_what_the_code_says() -> None:
    """Nobody edits it by hand: `python -m tools.generate_failure_classes`."""
    assert TARGET.read_text(encoding="utf-8") == page()
