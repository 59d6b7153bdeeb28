"""Score the classifier on every corpus here (`make evaluate`), or on those that are named; then count false certainty."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from gpualert.evaluate import main as evaluate
from gpualert.false_certainty import Case, cases_of_corpus, foreign, measure, nonsense, table, wrong_ones

HERE = Path(__file__).parent
FOREIGN = HERE / "foreign"


def corpora(names: list[str]) -> list[Path]:
    """The named corpora, or all."""
    return [HERE / name for name in names] or sorted(path.parent for path in HERE.glob("*/labels.jsonl"))


def false_certainty_cases(chosen: list[Path]) -> Iterator[Case]:
    """What is left of every log of these corpora; logs that hold nothing; logs of other things."""
    for corpus in chosen:
        yield from cases_of_corpus(str(corpus / "labels.jsonl"), str(corpus / "logs"))
    yield from nonsense()
    yield from foreign(str(FOREIGN))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("names", nargs="*", help="corpora; none: all")
    parser.add_argument("--rules", help="add these rules")
    parser.add_argument("--save", metavar="FOLDER", help="write the answers down, a file for each corpus")
    parser.add_argument("--against", metavar="WHAT", help="compare: a folder that --save wrote, a rules file, 'builtin'")
    parser.add_argument("--scores-only", action="store_true", help="do not count false certainty")
    parser.add_argument("--intervals", default="0", metavar="N", help="bootstrap resamples for 95 %% intervals")
    args = parser.parse_args(arguments)
    chosen = corpora(args.names)
    for corpus in chosen:
        print(f"== {corpus.name}")
        options = ["--intervals", args.intervals]
        if args.rules:
            options += ["--rules", args.rules]
        if args.save:
            Path(args.save).mkdir(parents=True, exist_ok=True)
            options += ["--save", str(Path(args.save) / f"{corpus.name}.jsonl")]
        if args.against:
            saved = Path(args.against) / f"{corpus.name}.jsonl"
            options += ["--against", str(saved) if Path(args.against).is_dir() else args.against]
        evaluate([str(corpus / "labels.jsonl"), str(corpus / "logs"), *options])
        print()
    if not args.scores_only:
        from gpualert.userrules import load_rules

        tallies = measure(false_certainty_cases(chosen), load_rules(args.rules) if args.rules else None)
        print(table(tallies))
        print()
        print(wrong_ones(tallies))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
