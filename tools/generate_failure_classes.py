"""Write docs/reference/failure-classes.md from the code: ``python -m tools.generate_failure_classes [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpualert.signature import Role
from gpualert.signatures import TABLE
from gpualert.taxonomy import (
    CLASS_FACTS,
    DOMAIN_SENTENCES,
    OUTLOOK_SENTENCES,
    FailureClass,
)

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "failure-classes.md"

HEAD = """\
# Failure classes

<!-- Written by tools/generate_failure_classes.py from taxonomy.py and signatures*.py; change it there. -->

A verdict gives three answers: the **class** (what happened), the **domain** (whose it is) and the **outlook** (what
another try can do, on the same host and on another one). How a class is chosen is told in
[the verdict](../explanation/verdict.md). `coarse` is the nearest of GPUAlert's fifteen names, or `generic`.

## Classes

| class | what happened | coarse | domain | retry, same host | retry, other host |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    yield HEAD
    for item in sorted(FailureClass, key=lambda item: item.value):
        facts = CLASS_FACTS[item]
        yield (
            f"| `{item.value}` | {facts.sentence} | `{facts.coarse}` | `{facts.domain.value}` "
            f"| `{facts.same_host.value}` | `{facts.other_host.value}` |\n"
        )
    yield "\nDomain and outlook are defaults. The evidence can change them: "
    yield "offline mode that the user set is not retried.\n"
    yield "\n## Domains\n\n| domain | whose |\n|---|---|\n"
    for domain, sentence in DOMAIN_SENTENCES.items():
        yield f"| `{domain.value}` | {sentence} |\n"
    yield "\n## Outlooks\n\n| outlook | meaning |\n|---|---|\n"
    for outlook, sentence in OUTLOOK_SENTENCES.items():
        yield f"| `{outlook.value}` | {sentence} |\n"
    yield "\n## Signatures\n\nEvery verdict names the rule that chose its line. `root` and `decisive` rules state "
    yield "causes, `weak` ones only where nothing stronger is there, `echo` ones are consequences; `benign` and `note` "
    yield "rules are no causes.\n\n"
    yield "| rule | role | class | a match does not prove |\n|---|---|---|---|\n"
    for row in TABLE:
        if row.role in (Role.BENIGN, Role.NOTE):
            continue
        name = f"`{row.failure_class.value}`" if row.failure_class is not None else "none"
        yield f"| `{row.name}` | {row.role.value} | {name} | {row.proves_not} |\n"
    names = ", ".join(f"`{row.name}`" for row in TABLE if row.role is Role.BENIGN)
    yield f"\nRules that hide what else is on their line (quotations, retries, habits of the software): {names}.\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.name} is not what the code says: python -m tools.generate_failure_classes", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
