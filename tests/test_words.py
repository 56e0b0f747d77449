"""Documentation and output use the established terms."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Expressions that are not used, and their replacements.
WORDS = {
    r"blind lines?\b": "blind baseline",
    r"\b(never looked|not looking)\b": "blind baseline",
    r"(?<!honest-but-)(?<!role-not-)\bcurious\b": "honest-but-curious",
    r"\bnot[ _]dominated\b": "Pareto-optimal",
    r"\bcoins\b": "randomness, seed",
    r"\bholdings\b": "local data",
    r"\bhollow\b": "incomplete",
    r"\breplicas?\b": "published implementation",
    r"\b(over columns|in several hands)\b": "vertical",
    r"\bglass wall\b": "local data boundary",
    r"\bbabbl": "(nothing)",
}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
OUTPUT = [
    path
    for folder in ("report", "cli", "audit", "core")
    for path in sorted((ROOT / "fedtrees" / folder).rglob("*"))
    if path.suffix in (".html", ".j2", ".csv") or (path.suffix == ".py" and folder != "core")
]


@pytest.mark.parametrize("word", WORDS)
def test_established_terms_are_used(word):
    occurrences = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:90]}"
        for path in [*PAGES, *OUTPUT]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(word, line, re.IGNORECASE)
    ]
    assert not occurrences, f"say {WORDS[word]!r}"
