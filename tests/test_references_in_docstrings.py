"""Every name that a docstring marks with single backquotes exists.

A name without dots has to be visible from its place: a parameter of the function, an attribute of
the class, a name that the module defines or imports, a module or name of the same package, a class
of the project, a parameter of a command, a registered name, or a column of the results.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from test_references import ROOT, SOURCES, classes, members, module_name

from fedtrees.benchmarks.papers.__main__ import study_names
from fedtrees.core.registry import KINDS, register
from fedtrees.core.results import COLUMNS

NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`(?!`)")
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

#: Names of other projects, which have no import path that Python can look up.
OTHER_PROJECTS = {
    "merge_ebms",  # function of interpret-core, an optional package
    "sacroml",  # optional package
    "hist",  # tree method of XGBoost
    "refit",  # method of LightGBM
    "GatherSketchInfo",  # C++ function of XGBoost
    "ConnectWorkers",  # C++ function of XGBoost
    "FedXgbBagging",  # strategy of Flower
    "FedXgbCyclic",  # strategy of Flower
}


def own_names(node: ast.AST) -> set[str]:
    """Return the names of a definition: parameters, attributes, local names and functions."""
    names: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.AsyncFunctionDef() | ast.ClassDef() | ast.FunctionDef():
                names.add(part.name)
            case ast.arg():
                names.add(part.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(part.id)
            case ast.Attribute(value=ast.Name(id="self")):
                names.add(part.attr)
    return names


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def module_names(path: Path) -> frozenset[str]:
    """Return the names that a module defines or imports, attributes of these classes, and keys.

    Keys are texts of the module, for example names of columns of a table.
    """
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                names |= {alias.asname or alias.name.split(".")[0], alias.name}
                names |= members(alias.name) or set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    for node in tree_of(path).body:
        names |= top_names(node)
        if isinstance(node, ast.ClassDef):
            names |= own_names(node) | (members(node.name) or set())
    return frozenset(names)


def top_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    return own_names(node)


@cache
def package_names(folder: Path) -> frozenset[str]:
    """Return the modules of a package and the names that they define."""
    names: set[str] = set()
    for path in folder.iterdir():
        if path.suffix == ".py":
            names |= {path.stem}.union(*map(top_names, tree_of(path).body))
        elif (path / "__init__.py").exists():
            names.add(path.name)
    return frozenset(names)


@cache
def public_names() -> frozenset[str]:
    """Return registered names, studies, columns of the results, packages and names of Python."""
    registered = {name for kind in KINDS for name in register.names(kind)}
    packages = {module_name(p).split(".")[1] for p in SOURCES if module_name(p) != "fedtrees"}
    others = {c.name for c in COLUMNS} | {*study_names()} | set(dir(builtins))
    return frozenset(registered | packages | others)


@cache
def is_installed(name: str) -> bool:
    """Return whether Python finds a package of another project."""
    return importlib.util.find_spec(name) is not None


def docstrings(path: Path) -> list[tuple[int, str, tuple[Definition, ...]]]:
    """Return line, text and enclosing definitions of every docstring of a module."""
    entries = []

    def visit(node: Definition, around: tuple[Definition, ...]) -> None:
        text = ast.get_docstring(node, clean=False)
        if text:
            entries.append((node.body[0].lineno, text, (*around, node)))
        for part in ast.walk(node):
            if part is not node and isinstance(part, Definition) and part not in visited:
                visited.add(part)
                visit(part, (*around, node))

    visited: set[ast.AST] = set()
    visit(tree_of(path), ())
    return entries


def is_visible(name: str, path: Path, around: tuple[Definition, ...]) -> bool:
    """Return whether a name exists that is visible in the docstring of a definition."""
    first, _, rest = name.partition(".")
    if rest:
        owner, attribute = name.split(".")[-2:]
        if owner in classes():
            attributes = members(owner)
            return attributes is None or attribute in attributes
        if first in OTHER_PROJECTS or (first != "fedtrees" and is_installed(first)):
            return True
    visible = module_names(path) | package_names(path.parent) | public_names()
    if first in visible | OTHER_PROJECTS or first in classes() or first == "fedtrees":
        return True
    if any(first in own_names(node) for node in around if not isinstance(node, ast.Module)):
        return True
    inherited = (members(node.name) or () for node in around if isinstance(node, ast.ClassDef))
    return any(first in names for names in inherited)


def missing(path: Path) -> list[str]:
    """Return the places in the docstrings of a module that name something that does not exist."""
    places = []
    for line, text, around in docstrings(path):
        for match in NAME.finditer(text):
            if not is_visible(match[1], path, around):
                at = line + text.count("\n", 0, match.start())
                places.append(f"{path.name}:{at} `{match[1]}`")
    return places


@pytest.mark.long
def test_names_in_docstrings_exist():
    places = {str(path.parent.relative_to(ROOT)): missing(path) for path in SOURCES}
    assert {folder: names for folder, names in places.items() if names} == {}


def test_a_name_that_exists_elsewhere_is_reported(tmp_path):
    module = tmp_path / "first.py"
    module.write_text(
        '"""Read by `second` and `third`, see `View.rows`, `View.none` and `numpy.mean`."""\n'
        "def grow(tree: int) -> None:\n"
        '    """Grow `tree` by `grow`, `shrink`, `View` and `hidden`."""\n'
        "    hidden = 1\n"
        "class Leaf:\n"
        "    depth: int\n"
        "    def cut(self):\n"
        '        """Reduce `depth`, not `tree`."""\n'
    )
    (tmp_path / "second.py").write_text("")
    names = [place.split("`")[1] for place in missing(module)]
    assert names == ["third", "View.none", "shrink", "tree"]
