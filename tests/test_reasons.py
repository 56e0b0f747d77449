"""Reasons are codes: no code of the package parses a sentence, and every code is used."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from families import FAMILIES, modules

from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import FITS, SLOTS, TEMPLATES, Reason

ROOT = Path(__file__).parents[1]
READS = {"startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix",
         "find", "rfind", "index"}  # fmt: skip
SENTENCES = {"reason", "note", "why", "message", "sentence", "verdict"}
#: Sentences of other libraries that provide the information in no other form.
ALLOWED = {
    "fedtrees/experiments/executor.py": "loky says in its error alone how a process ended",
    "fedtrees/model_audit/margins.py": "XGBoost's fault, in short",
}
STATES = {"ok", "skip", "unfit", "limit", "failed", "timeout", "undefined", "void", "gap",
          "no-claim"}  # fmt: skip


@cache
def product():
    """Return the syntax tree of every file of the package, by path."""
    return dict(_parsed())


def _parsed():
    """Yield the path and the syntax tree of every file of the package."""
    for folder in ("fedtrees", "attacks", "defenses"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def called(node):
    """Return the name of a value: `why`, `row["why"]`, `it.why`, ``str(err)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        name = called(node.args[0]) if node.args else ""
        return "sentence" if name.startswith("err") else name
    if isinstance(node, ast.Subscript):
        key = node.slice
        literal = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return key.value if literal else called(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return called(node.func.value)
    if isinstance(node, ast.Attribute):
        return called(node.value) if node.attr == "str" else node.attr
    return getattr(node, "id", "")


def texts(node):
    """Return the string constants in a node."""
    parts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return [part for part in parts if isinstance(part, str)]


def reads_prose(node):
    """Return whether code searches for words in a sentence."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in READS:
            return False
        searched_text, searched = (
            node.func.value,
            [text for arg in node.args for text in texts(arg)],
        )
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        searched_text, searched = node.comparators[0], texts(node.left)
        if isinstance(searched_text, (ast.Tuple, ast.Set, ast.List, ast.Dict)):
            return False
    else:
        return False
    words = any(" " in text != " " for text in searched)
    return bool(searched) and (called(searched_text) in SENTENCES or words)


def test_no_package_code_parses_a_sentence():
    parsing_places = {
        (name, node.lineno)
        for name, tree in product().items()
        for node in ast.walk(tree)
        if reads_prose(node)
    }
    assert {name for name, _ in parsing_places} == set(ALLOWED), sorted(parsing_places)


@pytest.mark.parametrize(
    "code",
    ['why.startswith("no")', 'row["reason"].str.removeprefix("training failed: ")',
     'str(err).find("x")', 'point.note.partition(":")', '"did you mean" in anything',
     'text.partition(" (")', 'reason.removeprefix(f"{path}: ")'],
)  # fmt: skip
def test_code_that_parses_a_sentence_is_found(code):
    assert reads_prose(ast.parse(code).body[0].value)


@pytest.mark.parametrize("code", ['text.endswith("\\n")', 'name in ("a b", "c")', "key in notes"])
def test_code_that_parses_no_sentence_is_not_found(code):
    assert not reads_prose(ast.parse(code).body[0].value)


def invented_reason(code):
    """Return a reason with invented arguments."""
    placeholders = dict(re.findall(r"{(\w+)(:[^}]*)?}", TEMPLATES[code].text))
    return Reason(
        code, **{name: 3 if form else name.upper() for name, form in placeholders.items()}
    )


@pytest.mark.parametrize("code", TEMPLATES)
def test_every_code_has_a_state_a_sentence_and_survives_a_file(code):
    reason = invented_reason(code)
    assert reason.state in STATES
    columns = reason.columns()
    assert "{" not in str(reason)
    assert Reason.read(columns["reason_code"], columns["reason_args"]) == reason
    assert reason.alike == Reason(code, **{k: v for k, v in reason.args if k not in SLOTS})
    assert str(reason.alike)


@pytest.mark.long
def test_every_code_is_used_and_every_use_has_its_arguments():
    used = {FITS.code}
    for name, tree in product().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reason":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    arguments = {k.arg for k in node.keywords}
                    needed = TEMPLATES[first.value].fields
                    assert arguments <= needed | {None}, (name, node.lineno)
                    assert None in arguments or needed - {*SLOTS} <= arguments, (name, node.lineno)
            used |= {node.value for node in [node] if isinstance(node, ast.Constant)} & {*TEMPLATES}
    assert used <= set(TEMPLATES)
    present = {name for name, _ in modules()}
    complete = all(part in present for parts in FAMILIES.values() for part in parts)
    assert not complete or used == set(TEMPLATES)  # a removed family leaves its codes


def test_an_unknown_reason_is_refused():
    with pytest.raises(UsageError, match="no reason has the code 'no-tress'; did you mean 'no-tre"):
        Reason("no-tress")
    with pytest.raises(UsageError, match=r"takes \['most', 'rows'\]; got \['rows'\]"):
        Reason("too-many-rows", rows=3)


def test_a_reason_of_another_release_becomes_its_text():
    assert Reason.read("of-tomorrow", "{}", "it rains") == Reason("other", text="it rains")
    assert Reason.read("too-many-rows", '{"rows": 1}', "x") == Reason("other", text="x")
    assert Reason.read("", "", "").ok
