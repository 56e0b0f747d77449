"""The key of a cell depends on the source of every module that computes its result."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedtrees
from fedtrees.core.source import code_digest

ROOT = Path(fedtrees.__file__).parent
LOADED = """
import sys
import fedtrees.experiments.session
from fedtrees.core.registry import register
for kind in ("protocol", "defense", "attack", "metric"):
    [register.get(kind, name) for name in register.names(kind)]
print(*{name.split(".")[1] for name in sys.modules if name.startswith("fedtrees.")})
"""


@pytest.fixture
def copied(tmp_path, monkeypatch):
    folder = tmp_path / "fedtrees"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fedtrees, "__file__", str(folder / "__init__.py"))
    yield folder
    code_digest.cache_clear()


@pytest.mark.long
def test_a_change_in_any_package_that_a_benchmark_loads_changes_every_key(copied):
    command = [sys.executable, "-c", LOADED]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    packages = [package for package in loaded.split() if (copied / package).is_dir()]
    assert {"core", "blind_baselines", "metrics", "trees"} <= set(packages)
    digests = []
    for package in ["", *packages]:
        if package:
            with (copied / package / "__init__.py").open("a") as file:
                file.write("CHANGED = True\n")
        code_digest.cache_clear()
        digests.append(code_digest())
    assert len(set(digests)) == len(digests)
