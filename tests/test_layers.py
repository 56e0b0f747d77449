"""The layers of the design hold: checked on the installed layout, where the folders meet."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def merged_layout(target: Path) -> Path:
    """Lay the package out as a wheel does: one folder, everything below it."""
    package = target / "fedtrees"
    shutil.copytree(ROOT / "fedtrees", package, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("defenses", "attacks", "benchmarks"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return package


def lint(folder: Path) -> subprocess.CompletedProcess:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )


def test_layers_hold(tmp_path):
    merged_layout(tmp_path)
    result = lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_an_attack_that_imports_the_truth_breaks_a_contract(tmp_path):
    package = merged_layout(tmp_path)
    (package / "attacks" / "cheat.py").write_text("from fedtrees.data import catalogue\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "attacks cannot reach the truth" in result.stdout


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("evidence/view.py", "import fedtrees.attacks.peeling.rows"),
        ("peeling/rows.py", "import fedtrees.attacks.timberstrike.reconstruct"),
        ("lattice/rows.py", "import fedtrees.attacks.joint.state"),
    ],
)
def test_evidence_imports_no_attack_and_attacks_no_circle(tmp_path, where, what):
    package = merged_layout(tmp_path)
    with (package / "attacks" / where).open("a") as file:
        file.write(f"{what}\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "evidence is not an attack" in result.stdout
