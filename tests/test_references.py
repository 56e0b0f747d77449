"""What docstrings and documentation name exists: modules, functions, attributes of classes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedtrees", "attacks", "defenses", "benchmarks")
SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
TEXTS = [*SOURCES, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
FULL = re.compile(r"(?<![\w./-])fedtrees(?:\.[A-Za-z_]\w*)+")
GROUPS = {"fedtrees.datasets"}  # of entry points, and no module
OF_CLASS = re.compile(r"`([A-Z]\w*[a-z]\w*)\.([a-z_]\w*)(?:\(\))?`")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fedtrees" else ("fedtrees", *parts)
    return ".".join(parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, dict[str, ast.AST]]:
    """Names that every module defines or imports."""
    found: dict[str, dict[str, ast.AST]] = {}
    for path in SOURCES:
        names: dict[str, ast.AST] = {}
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {a.asname or a.name.split(".")[0]: node for a in node.names}
        for node in tree.body:
            names |= dict.fromkeys(defined(node), node)
        found[module_name(path)] = names
    found["fedtrees"] |= dict.fromkeys(lazy_exports(), ast.Pass())
    return found


def lazy_exports() -> list[str]:
    tree = ast.parse((ROOT / "fedtrees" / "__init__.py").read_text())
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and str(n.value)]


def defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [t.id for t in targets if isinstance(t, ast.Name)]


@cache
def classes() -> dict[str, ast.ClassDef]:
    every = [n for names in modules().values() for n in names.values()]
    return {n.name: n for n in every if isinstance(n, ast.ClassDef)}


def members(name: str) -> set[str] | None:
    """Names a class has, with those of its bases; None where a base is not ours."""
    if name not in classes():
        return None
    node, found = classes()[name], set()
    for part in ast.walk(node):
        found.update(defined(part))
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found |= {part.attr} if part.value.id == "self" else set()
    for base in node.bases:
        text = ast.unparse(base).split("[")[0]
        inherited = (
            members(text) if text not in ("ABC", "Generic", "StrEnum", "NamedTuple") else set()
        )
        if inherited is None:
            return None
        found |= inherited
    return found


def exists(dotted: str) -> bool:
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        if (module := ".".join(parts[:size])) in modules():
            rest = parts[size:]
            if not rest:
                return True
            known = rest[0] in modules()[module]
            inside = members(rest[0]) if len(rest) > 1 else None
            return known and (inside is None or rest[1] in inside)
    return False


def unknown(text: str) -> list[str]:
    """Return the names in a text that nothing here is called by."""
    plain = re.sub(r"https?://\S+", "", text)
    named = (name for name in FULL.findall(plain) if "__" not in name and name not in GROUPS)
    wrong = [name for name in named if not exists(name)]
    for name, attribute in OF_CLASS.findall(plain):
        known = members(name)
        if known is not None and attribute not in known:
            wrong.append(f"{name}.{attribute}")
    return wrong


@pytest.mark.long
def test_what_texts_name_exists():
    wrong = {str(p.relative_to(ROOT)): unknown(p.read_text()) for p in TEXTS}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.long
def test_a_name_that_does_not_exist_is_found():
    text = "`fedtrees.trees.sketch.no_such`, `fedtrees.trees.gone`, `Cuts.none`, `Cuts.join`"
    assert unknown(text + ", `fedtrees.trees.binning.Cuts.nothing`") == [
        "fedtrees.trees.sketch.no_such",
        "fedtrees.trees.gone",
        "fedtrees.trees.binning.Cuts.nothing",
        "Cuts.none",
    ]
