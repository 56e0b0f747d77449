"""Declared packages are imported by the product, and the page "Dependencies" names them."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "dependencies.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Packages that the design names, and where each is declared.
OF_THE_DESIGN = {
    "xgboost": "", "numpy": "", "phe": "", "opacus": "neural", "ortools": "", "scikit-learn": "",
    "pandas": "", "plotly": "", "typer": "",
}  # fmt: skip
#: Names of modules that differ from the name of the package.
MODULES = {
    "scikit-learn": "sklearn", "imbalanced-learn": "imblearn", "interpret-core": "interpret",
    "dp-accounting": "dp_accounting",
}  # fmt: skip
#: Packages of extras that the product starts as a command, or pandas and NVFlare import.
NOT_IMPORTED = {"openpyxl", "pyarrow", "tensorboard", "nvflare", "flwr"}


def names(requirements):
    return [Requirement(text).name.lower() for text in requirements]


def declared():
    """Return the packages by extra, those of the base installation under an empty name."""
    extras = PROJECT["optional-dependencies"].items()
    return {"": names(PROJECT["dependencies"]), **{extra: names(r) for extra, r in extras}}


@cache
def imported_modules():
    """Return the top-level modules that the product imports, also inside of functions."""
    modules = set()
    for folder in ("fedtrees", "attacks", "defenses", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if folder == "benchmarks" and "perf" not in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    modules.add((node.module or "").partition(".")[0])
    return modules


def module_of(package):
    return MODULES.get(package, package.replace("-", "_"))


@pytest.mark.parametrize("package", OF_THE_DESIGN)
def test_a_package_of_the_design_is_declared_and_imported(package):
    assert package in declared()[OF_THE_DESIGN[package]]
    assert module_of(package) in imported_modules()


@pytest.mark.parametrize("extra", ["", "neural", "cluster", "ebm", "perf"])
def test_every_declared_package_is_imported_by_the_product(extra):
    unused = {p for p in declared()[extra] if module_of(p) not in imported_modules()} - NOT_IMPORTED
    assert not unused


def test_the_page_names_every_declared_package_and_no_other():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    base_packages, extras = set(), {}
    for row in rows:
        first, second = (re.findall(r"`([\w-]+)`", cell) for cell in row.split("|")[1:3])
        if first[0] in declared():
            for extra in first:
                extras.setdefault(extra, set()).update(second)
        elif len(first) == 1:
            base_packages |= {*first}
    assert base_packages == {*declared()[""]}
    groups = {frozenset({"nvflare", "federation", "capture"}), frozenset({"test", "docs"})}
    for group in groups:
        shared = set().union(*(declared()[extra] for extra in group))
        named_in_page = set().union(*(extras[extra] for extra in group))
        # These belong to other extras, but tests use them as well.
        other_extras = {"lightgbm", "openpyxl", "pyarrow"}
        assert named_in_page == shared - other_extras
    for extra in {*declared()} - {""} - set().union(*groups):
        assert extras[extra] == {*declared()[extra]}, extra


def test_the_code_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
