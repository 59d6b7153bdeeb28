"""Which Airflow we are: part of every launch key, so that staging can never stop production on a shared account."""

from __future__ import annotations

import uuid

from gpualert_provider.exceptions import LedgerError

#: The Airflow variable that holds it, made by the first task that needs it.
VARIABLE = "gpualert_deployment_id"


def deployment_id() -> str:
    """
    The deployment's id.

    Two first tasks may each write one; the later write stays. A task writes the id that it used into its ledger, and
    goes on using that, so it does not matter which of them it read.

    :raises LedgerError: the variable can be neither read nor made.
    """
    from airflow.sdk import Variable

    try:
        found = Variable.get(VARIABLE, default=None)
        if not found:
            Variable.set(
                VARIABLE, uuid.uuid4().hex, "Names this Airflow in GPUAlert's launch keys. Do not change or copy it."
            )
            found = Variable.get(VARIABLE)
    except Exception as error:
        raise LedgerError(
            f"Airflow variable {VARIABLE!r}: it could not be made ({error}). Create it by hand, with any unique text"
        ) from error
    return str(found)
