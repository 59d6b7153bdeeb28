"""The rules by which one launch is judged: the built-in ones, and those of its author that came with it.

Whatever is wrong with the author's, the launch is judged: by the built-in ones, and the verdict says so.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.rundir import RunDirectory
    from gpualert.signature import RuleSet


def rules_of_launch(directory: RunDirectory) -> tuple[RuleSet | None, str | None]:
    """
    :return: (rules, None); None for the built-in ones alone; with a warning when the launch brought rules that cannot
        be used here.
    """
    if not os.path.lexists(directory.rules_path):
        return None, None
    try:
        from gpualert.userrules import rules_from_json

        value = directory.read_rules()
        if value is None:
            raise ValueError("the file is empty")
        return rules_from_json(value, "rules.json"), None
    # Anything: a verdict by other rules is better than none.
    except Exception as error:
        why = "; ".join(str(error).splitlines()) or type(error).__name__
        return None, f"judged by the built-in rules alone, since the launch's own cannot be used: {why[:500]}"
