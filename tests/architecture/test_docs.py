"""Every link in the documentation leads somewhere, and every page can be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_tree import ROOT, tracked

LINK = re.compile(r"(?<!!)\[[^\]^]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.S | re.M)
INLINE_CODE = re.compile(r"`[^`\n]*`")


def pages() -> list[Path]:
    return [p for p in tracked(".md") if not str(p.relative_to(ROOT)).startswith("tests/")]


def links(page: Path) -> Iterator[str]:
    """Targets of all links of a page; code is not searched."""
    text = INLINE_CODE.sub("", FENCE.sub("", page.read_text()))
    for match in LINK.finditer(text):
        yield match.group(1) or match.group(2)


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be reached, as GitHub makes them."""
    names: dict[str, int] = {}
    for line in FENCE.sub("", page.read_text()).splitlines():
        heading = re.match(r"#{1,6}\s+(.*)", line)
        if heading:
            words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower())
            name = words.strip().replace(" ", "-")
            names[name] = names.get(name, -1) + 1
    return {name if n == 0 else f"{name}-{n}" for name, last in names.items() for n in range(last + 1)}


def is_elsewhere(target: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def test_every_link_resolves() -> None:
    """File and heading exist; links to other sites are not asked, since tests reach no network."""
    broken = []
    for page in pages():
        for target in links(page):
            if is_elsewhere(target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if not path.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}: no such file")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                broken.append(f"{page.relative_to(ROOT)}: {target}: no such heading")

    assert not broken


def test_every_page_can_be_reached_from_the_readme() -> None:
    """A page that nobody links to is read by nobody; changelog fragments are collected at a release instead."""
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [(page.parent / t.partition("#")[0]).resolve() for t in links(page) if not is_elsewhere(t)]
        queue += [t for t in targets if t.suffix == ".md" and t.is_file()]
        queue += [p for t in targets if t.is_dir() for p in t.glob("*.md")]
    fragments = ROOT / "docs" / "changes"

    assert not [str(p.relative_to(ROOT)) for p in pages() if p not in seen and p.parent != fragments]
