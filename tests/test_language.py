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


#: Names that do not say what a variable, an argument or a function contains or returns.
VAGUE_NAMES = {
    *("asked", "done", "found", "given", "held", "kept", "known", "made", "mine", "nobody"),
    *("ours", "own", "said", "seen", "somebody", "stated", "theirs", "told", "wanted"),
    *("whoever", "whole"),
}
#: The tests define about 35,000 names, of which none was vague when this limit was set. The limit
#: leaves room for a new test with such a name, and may only be lowered.
MOST_VAGUE_NAMES = 10


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


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
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


def assigned_names(path):
    """Yield the names of the variables, arguments and functions that a file of tests defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno


def test_names_in_the_tests_say_what_they_contain():
    """A test is clear at first reading if its variables are named after their contents.

    For example, `scores` or `error_message` instead of the words in `VAGUE_NAMES`.
    """
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name, line in assigned_names(path)
        if name in VAGUE_NAMES
    ]
    assert len(vague) <= MOST_VAGUE_NAMES, vague
