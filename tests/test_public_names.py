"""The names that users and plug-ins import from `fedtrees`, and old names of modules."""

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import fedtrees
from fedtrees import moved
from fedtrees.conformance.attacks import _named_imports
from fedtrees.experiments.options import BenchOptions

ROOT = Path(__file__).parents[1]


def test_type_checkers_see_the_names_that_the_package_exports():
    stub = ast.parse((ROOT / "fedtrees" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == fedtrees.PUBLIC_NAMES
    assert sorted(fedtrees.__all__) == sorted({*imported, "__version__"})


@pytest.mark.parametrize("name", fedtrees.PUBLIC_NAMES)
def test_public_names_have_a_docstring_and_a_module(name):
    value = getattr(fedtrees, name)
    assert getattr(import_module(fedtrees.PUBLIC_NAMES[name]), name) is value
    assert inspect.getdoc(value)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'Atack'"):
        _ = fedtrees.Atack


def test_bench_has_the_options_of_the_command():
    parameters = inspect.signature(fedtrees.bench).parameters
    options = {field.name: field.default for field in fields(BenchOptions)}
    defaults = {
        n: parameter.default
        for n, parameter in parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert defaults == options
    text = inspect.getdoc(fedtrees.bench)
    assert all(f"\n{name} : " in text for name in options)


def test_importing_the_package_imports_no_numerical_library():
    code = "import fedtrees, sys; print({'numpy', 'pandas', 'numba'} & set(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "set()"


@pytest.mark.parametrize("old", moved.MOVED)
def test_an_old_module_name_imports_its_replacement_with_a_warning(old):
    new = import_module(f"fedtrees.{moved.MOVED[old]}")
    sys.modules.pop(f"fedtrees.{old}", None)
    with pytest.warns(DeprecationWarning, match="is now a part of"):
        module = import_module(f"fedtrees.{old}")
    public = [name for name in vars(new) if not name.startswith("_")]
    assert all(getattr(module, name) is getattr(new, name) for name in public)
    vars(fedtrees).pop("audit", None)  # the old package, whose name is now that of a function


def test_a_function_with_the_name_of_an_old_package_works_after_an_import_of_that_package(tmp_path):
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import fedtrees, fedtrees.audit.scrub\n"
        "try: fedtrees.audit('absent.json')\n"
        "except fedtrees.DataError as error: print(error)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "absent.json" in process.stdout


def test_old_names_are_not_modules_of_the_package():
    for old in moved.MOVED:
        folder, *path = old.split(".")
        top = ROOT / folder if folder == "defenses" else ROOT / "fedtrees" / folder
        assert not top.joinpath(*path).with_suffix(".py").exists()


def test_the_check_of_an_attack_sees_through_public_names():
    """An attack that imports a data set by its public name imports a module with ground truth."""
    assert "fedtrees.data.dataset" in _named_imports("from fedtrees import Attack, Dataset")
