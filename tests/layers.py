"""Run import-linter on the installed layout, in which the folders are one package.

``python tests/layers.py`` prints the result.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def merged_layout(target: Path) -> Path:
    """Lay the package out like a wheel: one folder that contains all packages."""
    package = target / "fedtrees"
    shutil.copytree(ROOT / "fedtrees", package, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("defenses", "attacks", "benchmarks"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return package


def lint(folder: Path) -> subprocess.CompletedProcess:
    """Run import-linter in a folder."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        merged_layout(Path(folder))
        result = lint(Path(folder))
    print(result.stdout, result.stderr)
    sys.exit(result.returncode)
