"""Modules, functions and class attributes that texts refer to exist."""

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
GROUPS = {"fedtrees.datasets", "fedtrees.behaviours"}  # groups of entry points, not modules
OF_CLASS = re.compile(r"`([A-Z]\w*[a-z]\w*)\.([a-z_]\w*)(?:\(\))?`")


def module_name(path: Path) -> str:
    """Return the dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "fedtrees" else ("fedtrees", *parts)
    return ".".join(parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, dict[str, ast.AST]]:
    """Return the names that every module defines or imports."""
    names_of_module: dict[str, dict[str, ast.AST]] = {}
    for path in SOURCES:
        names: dict[str, ast.AST] = {}
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {a.asname or a.name.split(".")[0]: node for a in node.names}
        for node in tree.body:
            names |= dict.fromkeys(defined(node), node)
        names_of_module[module_name(path)] = names
    names_of_module["fedtrees"] |= dict.fromkeys(lazy_exports(), ast.Pass())
    return names_of_module


def lazy_exports() -> list[str]:
    """Return the names that the package loads on demand."""
    tree = ast.parse((ROOT / "fedtrees" / "__init__.py").read_text())
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and str(n.value)]


def defined(node: ast.AST) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [t.id for t in targets if isinstance(t, ast.Name)]


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Return all classes by name. Several modules can define a class of one name."""
    classes_of_name: dict[str, list[ast.ClassDef]] = {}
    for names in modules().values():
        for node in names.values():
            if isinstance(node, ast.ClassDef):
                classes_of_name.setdefault(node.name, []).append(node)
    return classes_of_name


def members(name: str) -> set[str] | None:
    """Return the attributes of the classes of this name and of their bases.

    The result is None if a base is from another package, or if there is no such class.
    """
    attributes: set[str] = set()
    for node in classes().get(name, ()):
        for part in ast.walk(node):
            attributes.update(defined(part))
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                attributes |= {part.attr} if part.value.id == "self" else set()
        for base in node.bases:
            text = ast.unparse(base).split("[")[0]
            if text in ("ABC", "Generic", "StrEnum", "NamedTuple"):
                continue
            inherited = members(text)
            if inherited is None:
                return None
            attributes |= inherited
    return attributes if name in classes() else None


def exists(dotted: str) -> bool:
    """Return whether a dotted name exists."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        if (module := ".".join(parts[:size])) in modules():
            rest = parts[size:]
            if not rest:
                return True
            is_defined = rest[0] in modules()[module]
            attributes = members(rest[0]) if len(rest) > 1 else None
            return is_defined and (attributes is None or rest[1] in attributes)
    return False


def unknown(text: str) -> list[str]:
    """Return the names in a text that do not exist."""
    plain = re.sub(r"https?://\S+", "", text)
    names = (name for name in FULL.findall(plain) if "__" not in name and name not in GROUPS)
    wrong = [name for name in names if not exists(name)]
    for name, attribute in OF_CLASS.findall(plain):
        attributes = members(name)
        if attributes is not None and attribute not in attributes:
            wrong.append(f"{name}.{attribute}")
    return wrong


@pytest.mark.long
def test_names_in_texts_exist():
    wrong = {str(p.relative_to(ROOT)): unknown(p.read_text()) for p in TEXTS}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.long
def test_a_missing_name_is_reported():
    text = "`fedtrees.trees.cut_points.no_such`, `fedtrees.trees.gone`, `Cuts.none`, `Cuts.join`"
    assert unknown(text + ", `fedtrees.trees.binning.Cuts.nothing`") == [
        "fedtrees.trees.cut_points.no_such",
        "fedtrees.trees.gone",
        "fedtrees.trees.binning.Cuts.nothing",
        "Cuts.none",
    ]
