"""The declared ranges of dependencies are tested, and messages name them."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fedtrees.capture.attack import report
from fedtrees.capture.formats import WIRES, versions_of
from fedtrees.capture.records import Run, Writer
from fedtrees.core.errors import DataError
from fedtrees.core.supported import SYSTEMS, TESTED, name_versions, untested
from fedtrees.report.recipe import settings, systems

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if "==" in line and not line.startswith("#")
)


def declared():
    """Return every declared requirement, including those of extras."""
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("package", ["xgboost", "nvflare", "flwr", "opacus", "phe"])
def test_declared_ranges_are_tested(package):
    tested, requirements = TESTED[package], [r for r in declared() if r.name == package]
    assert requirements
    for requirement in requirements:
        assert requirement.specifier.contains(f"{tested.oldest}.0")
        assert requirement.specifier.contains(f"{tested.newest}.9")
        major, minor = map(int, tested.newest.split("."))
        assert not requirement.specifier.contains(f"{major}.{minor + 1}.0")
        major, minor = map(int, tested.oldest.split("."))
        assert not requirement.specifier.contains(f"{major}.{minor - 1}.9" if minor else "2.1.4")


def test_ci_compares_with_the_oldest_and_the_newest_xgboost():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (oldest,) = set(re.findall(r" xgboost==([\d.]+)", text))
    assert Version(oldest) == Version(TESTED["xgboost"].oldest)
    assert PINNED["xgboost"].startswith(f"{TESTED['xgboost'].newest}.")
    command = text[text.index("oldest_xgboost()") :]
    tests = re.findall(r"tests/\S+\.py", command[: command.index("}")])
    assert tests
    assert all((ROOT / name).is_file() for name in tests)


def test_the_page_of_the_engine_names_the_range_and_its_reason():
    page = (ROOT / "docs/explanation/engine.md").read_text(encoding="utf-8")
    assert TESTED["xgboost"].range in page
    (text,) = (t for t in PROJECT["dependencies"] if t.startswith("xgboost"))
    assert f"`{text}`" in page


def test_python_versions_are_those_of_the_classifiers():
    numbers = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert numbers[0] == PROJECT["requires-python"].removeprefix(">=")
    page = (ROOT / "docs/how-to/reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+)\.\d+ \|", page, re.MULTILINE)
    assert sorted({*rows}) == numbers


def test_every_system_and_wire_names_the_versions_it_was_tested_with():
    assert {*systems()} <= {*SYSTEMS}
    for wire in WIRES:
        assert "Tested with" in versions_of(wire)
    assert "neither column split nor the federated server" in versions_of("xgboost")
    sentences = [*settings("nvflare-hist", "none")]
    assert len(sentences) == 2
    for system, sentence in zip(("nvflare", "xgboost"), sentences, strict=True):
        assert sentence.endswith(name_versions(SYSTEMS[system]))
        assert "XGBoost 3.0 to 3.2" in sentence


def test_a_capture_of_an_untested_version_reports_it(tmp_path):
    assert untested("xgboost", version("xgboost")) == ""
    assert "3.4.1 was not tested" in untested("xgboost", "3.4.1")
    Writer(tmp_path / "run.capture", Run("xgboost", "3.4.1", "rabit", "", {})).close()
    with pytest.raises(DataError, match=r"capture ends before .*XGBoost 3\.4\.1 was not tested"):
        report(str(tmp_path / "run.capture"), "third", {})
