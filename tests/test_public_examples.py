"""Examples in the documentation of public names, and their types in a script of a user."""

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedtrees
from fedtrees.core.registry import Registry

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "user_script.py"
#: Instances whose class has the documentation.
CLASSES = {"register": Registry}


def documented(name):
    """Return the class or function that documents a public name."""
    return CLASSES.get(name, getattr(fedtrees, name))


@pytest.mark.parametrize("name", fedtrees.PUBLIC_NAMES)
def test_a_public_name_has_an_example_that_works(name, capsys):
    value = documented(name)
    text = inspect.getdoc(value)
    assert "Examples\n--------" in text
    if inspect.isfunction(value):
        for section in ("Parameters\n----------", "Returns\n-------"):
            assert section in text or (section.startswith("Returns") and name == "handles")
    parser = doctest.DocTestParser()
    test = parser.get_doctest(text, vars(sys.modules[value.__module__]).copy(), name, None, 0)
    assert test.examples
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.failed == 0, capsys.readouterr().out


def test_the_method_attack_of_an_estimator_has_an_example_that_works(capsys):
    text = inspect.getdoc(fedtrees.FederatedGBDTClassifier.attack)
    test = doctest.DocTestParser().get_doctest(text, {}, "attack", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["bench", "recommend", "audit"])
def test_the_help_of_a_function_shows_every_option_with_its_type(name):
    function = getattr(fedtrees, name)
    signature = inspect.signature(function)
    text = inspect.getdoc(function)
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            assert parameter.annotation is not parameter.empty, parameter.name
            assert re.search(rf"(?:^|[ ,]){parameter.name}\b.*", text, re.M), parameter.name


@pytest.mark.long
def test_a_strict_type_checker_knows_every_type_of_a_users_script():
    """Under `mypy --strict`, no expression of the script is `Any`.

    The only exceptions are types that pandas and scikit-learn, which have no types, would supply.
    """
    process = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(SCRIPT)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    revealed = re.findall(r'Revealed type is "(.*)"', process.stdout)
    assert len(revealed) == SCRIPT.read_text(encoding="utf-8").count("reveal_type(") > 40
    # The shape of an array is not a part of its type.
    without_shapes = [text.replace("ndarray[tuple[Any, ...], ", "") for text in revealed]
    assert [text for text in without_shapes if re.search(r"\bAny\b", text)] == []
    assert ": error:" not in process.stdout, process.stdout
    used_names = {
        name for name in fedtrees.PUBLIC_NAMES if re.search(rf"\b{name}\b", SCRIPT.read_text())
    }
    assert used_names == set(fedtrees.PUBLIC_NAMES)
