"""Docstrings and comments are plain technical English, and names say what a variable contains.

Frequencies are per 10,000 words of docstrings and comments. Each limit is a few times the frequency
in scikit-learn, dp-accounting, Opacus and similar projects.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    [f"fedtrees/{p.name}" for p in (ROOT / "fedtrees").iterdir() if (p / "__init__.py").exists()]
    + ["attacks", "defenses", "benchmarks"]
)
LIMITS = {
    ("what",): 8,
    ("tell", "tells", "told", "telling"): 3,
    ("who", "whoever", "whom"): 8,
    ("nobody", "somebody", "everybody"): 1,
    ("say", "says", "said"): 3,
    ("stand", "stands", "stood"): 2,
    ("beside",): 1,
    ("hold", "holds", "held"): 8,
    ("own",): 8,
    ("alone",): 2,
    ("whole",): 4,
}


@cache
def words_of(package):
    """Count the words of the docstrings and comments of a package, without code in backticks."""
    parts = []
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                parts.append(ast.get_docstring(node) or "")
        parts += re.findall(r"#.*", source)
    prose = re.sub(r"`+[^`]*`+", " ", "\n".join(parts).lower())
    return Counter(re.findall(r"[a-z]+", prose))


@pytest.mark.parametrize("words", LIMITS, ids=" ".join)
def test_docstrings_and_comments_avoid_words_without_a_subject(words):
    counts = sum((words_of(package) for package in PACKAGES), Counter())
    assert 10_000 * sum(counts[w] for w in words) / counts.total() <= LIMITS[words]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_a_private_style(package):
    """A package may exceed a limit by a factor of two, because some packages are small."""
    counts = words_of(package)
    excess = {
        words: n
        for words, limit in LIMITS.items()
        if (n := sum(counts[w] for w in words)) > 3 and 10_000 * n / counts.total() > 2 * limit
    }
    assert not excess


def test_public_functions_document_their_parameters():
    """Half of the public functions with three or more arguments have a Parameters section."""
    counts = Counter()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    names = [a.arg for a in node.args.args + node.args.kwonlyargs]
                    if len([n for n in names if n not in ("self", "cls")]) >= 3:
                        counts["Parameters\n" in (ast.get_docstring(node) or "")] += 1
    assert counts[True] >= 0.6 * counts.total()
