"""Which lines show that the training advances: a metric with a finite value, a step counter, a progress bar.

Lines arrive folded: lower case, digits dropped (``loss 2.41`` is ``loss .``). A line of this kind after an error says
that the error was survived.
"""

from __future__ import annotations

import re

PROGRESS_STEMS = (b"loss", b"step", b"epoch", b"iter", b"it/s", b"s/it", b"batch", b"tok/s", b"progress:")

# A number that lost its digits is what is left of it: a point, an exponent, or nothing before a separator.
# What a name may go on with is bounded, and what it may begin with is not asked: each would be tried from every place
# of a long word, again and again.
_METRIC = re.compile(
    rb"(?:loss\w{0,80}|perplexity|ppl|acc(?:uracy)?\d?|l_pix|reward)(?:/[\w/]{1,40})?['\"]?\s{0,4}[:=]?\s{0,4}[\[(]?\s{0,3}[-+]?"
    rb"(?:\.(?:e[-+])?|e[-+])(?![\w.])"
)
_COUNTER = re.compile(
    rb"\b(?:global[_ ])?(?:step|iter|iteration|epoch|batch)s?\b['\"]?\s{0,3}[:=#]?\s{0,3}[\[(]?[\[\] (,:]{0,8}/"
    rb"|\b(?:step|iter|iteration|epoch)\s?[=:]\s{0,8}(?:[|,;\s-]|$)"
)
_BAR = re.compile(rb"\|\s*/\s*\[[^\]]{0,200}(?:it/s|s/it)|\b/ \[[.=>]{3,60}\]")
_NOT_TRAINING = re.compile(
    rb"error|exception|traceback|fail|shard|download|tokeniz|\bmap|filter|loading|generating|saving|warning|resum|abort|killed|"
    rb"cancel|exit|stopp|sanity|compil|captur|fetching|timed? ?out"
)
_NOT_FINITE = re.compile(rb"\bloss\w*['\"]?\s*[:=]?\s*[\[(]?\s*[-+]?(?:nan|inf)\b")


def is_progress(form: bytes) -> bool:
    """Whether a folded line shows the training advancing with finite numbers."""
    if len(form) > 2000:
        form = form[:2000]
    if _NOT_TRAINING.search(form) is not None or _NOT_FINITE.search(form) is not None:
        return False
    return _METRIC.search(form) is not None or _COUNTER.search(form) is not None or _BAR.search(form) is not None
