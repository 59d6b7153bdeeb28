"""The whole table, in the order in which rows are asked: context first, then from specific to general."""

from __future__ import annotations

from gpualert import (
    signatures_context,
    signatures_distributed,
    signatures_gpu,
    signatures_host,
    signatures_python,
)
from gpualert.signature import Signature

TABLE: tuple[Signature, ...] = (
    signatures_context.ROWS
    + signatures_gpu.ROWS
    + signatures_host.ROWS
    + signatures_distributed.ROWS
    + signatures_python.ROWS
)
