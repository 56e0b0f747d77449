"""The import contracts of the design are kept in the installed layout."""

import ast
from pathlib import Path

import pytest
from layers import lint, merged_layout


def test_import_contracts_are_kept(tmp_path):
    merged_layout(tmp_path)
    result = lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_ray_and_nvflare_are_imported_only_where_they_run(tmp_path):
    importing_files = set()
    for path in merged_layout(tmp_path).rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            modules = (
                [alias.name for alias in getattr(node, "names", [])]
                if isinstance(node, ast.Import)
                else []
            )
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in ("ray", "nvflare") for name in modules):
                importing_files.add(Path(path).name)
    assert importing_files == {"flare.py"}  # only loaded by processes of NVFlare


def test_an_attack_that_imports_the_truth_breaks_a_contract(tmp_path):
    package = merged_layout(tmp_path)
    (package / "attacks" / "cheat.py").write_text("from fedtrees.data import catalogue\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "attacks cannot reach the truth" in result.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("observations/reading.py", "import fedtrees.attacks.peeling.rows"),
        ("peeling/rows.py", "import fedtrees.attacks.timberstrike.reconstruct"),
        ("exact_decoding/path_hypotheses.py", "import fedtrees.attacks.joint.posterior_problem"),
    ],
)
def test_observations_import_no_attack_and_attacks_have_no_import_cycle(
    tmp_path, module, statement
):
    package = merged_layout(tmp_path)
    with (package / "attacks" / module).open("a") as file:
        file.write(f"{statement}\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "observations and solvers are no attacks" in result.stdout
