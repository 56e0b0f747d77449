"""Assignment of modules to families, and the removal of a family from a copy of the package.

A family builds on shared modules and not on other families. ``python tests/families.py NAME [pytest
arguments]`` removes a family and the folder ``tests/NAME`` from a copy, and runs the remaining
tests.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

from layers import merged_layout

ROOT = Path(__file__).parents[1]

#: Modules of each family, relative to ``fedtrees``. Modules that combine families are in `ABOVE`.
FAMILIES = {
    "horizontal": (
        "protocols.horizontal", "protocols.behaviours.horizontal",
        "attacks.malicious", "attacks.timberstrike", "attacks.joint", "attacks.exact_decoding",
        "attacks.peeling", "attacks.sketch_reading", "attacks.lightgbm", "defenses.laplace",
        "privacy_audit.histograms", "privacy_audit.leaf_sums", "privacy_audit.shapes",
        "protocols.peers.lightgbm_data", "protocols.peers.xgboost_ring",
    ),
    "vertical": (
        "protocols.vertical", "protocols.behaviours.vertical", "attacks.labels",
        "attacks.rank_inference", "attacks.bins", "attacks.queries", "attacks.plaintext",
        "defenses.nodes", "defenses.grafting", "defenses.label_noise", "privacy_audit.labels",
        "protocols.peers.xgboost_vertical",
    ),
    "forests": (
        "protocols.forests", "attacks.forests", "attacks.forest_gibbs", "privacy_audit.forests",
    ),
    "networks": (
        "neural", "protocols.networks", "messages.networks", "attacks.gradients",
        "defenses.dp_sgd", "defenses.updates", "privacy_audit.networks",
    ),
    "tree-networks": (
        "protocols.tree_networks", "attacks.tree_network_inversion",
    ),
    "regressions": (
        "protocols.regression", "messages.regression", "linear", "attacks.regression",
        "defenses.decrypted_precision", "defenses.dp_gd", "privacy_audit.regression",
    ),
    "queries": ("defenses.endpoint",),
    "crypto": ("defenses.paillier", "defenses.masking"),
    "audit": ("model_audit", "cli.audit"),
}  # fmt: skip
#: Packages that combine families.
ABOVE = ("cli", "api", "estimators", "benchmarks", "model_audit", "capture")
#: The only family that builds on other families.
CROSSING = {("tree-networks", "networks"), ("tree-networks", "horizontal")}
FOLDERS = {"fedtrees": "", "attacks": "attacks", "defenses": "defenses", "benchmarks": "benchmarks"}


def below(module, parts):
    """Return whether a module is one of some packages, or inside one of them."""
    return any(module == p or module.startswith(p + ".") for p in parts)


def family(module):
    """Return the family of a module, named relative to ``fedtrees``. None for a shared module."""
    return next((name for name, parts in FAMILIES.items() if below(module, parts)), None)


def modules(root=ROOT):
    """Yield the name relative to ``fedtrees`` and the file of every module."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if "templates" not in parts:
                name = ".".join((*filter(None, (package,)), *parts))
                yield name.removesuffix(".__init__").removesuffix("__init__"), path


def imports(path):
    """Yield the names that a module imports from ``fedtrees``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedtrees."):
            base = node.module.removeprefix("fedtrees.")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def crossings(root=ROOT):
    """Return the imports between families, by importing and imported family."""
    pairs_of_ends = defaultdict(set)
    for module, path in modules(root):
        if below(module, ABOVE):
            continue
        for other in imports(path):
            importing_and_imported = family(module), family(other)
            if (
                importing_and_imported[1] is not None
                and importing_and_imported[0] != importing_and_imported[1]
            ):
                pairs_of_ends[importing_and_imported].add((module, other))
    return dict(pairs_of_ends)


def without(name, target):
    """Lay out the package like a wheel, without a family, its entry points and its tests."""
    package = merged_layout(target)
    for part in FAMILIES[name]:
        path = package.joinpath(*part.split("."))
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    project = (target / "pyproject.toml").read_text()
    for part in (re.escape(f"fedtrees.{part}") for part in FAMILIES[name]):
        project = re.sub(rf'^.*"{part}(\.[\w.]+)?(:\w+)?",?$\n', "", project, flags=re.M)
    (target / "pyproject.toml").write_text(project)
    # The metadata in this folder takes precedence over that of the installed package.
    metadata = target / "fedtrees.egg-info"
    metadata.mkdir()
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fedtrees\nVersion: 0\n")
    groups = tomllib.loads(project)["project"]["entry-points"]
    with (metadata / "entry_points.txt").open("w") as file:
        for group, points in groups.items():
            print(f"[{group}]", *(f"{k} = {v}" for k, v in points.items()), sep="\n", file=file)
    (target / "sitecustomize.py").write_text(ONLY_HERE)
    return package


#: Tests that concern all families: this one, references in texts, and benchmarks.
ABOUT_ALL = ("families", "style", "references", "perf", "counts_campaign")
#: Tests that compare documents with all families, or clone the repository.
ABOUT_DOCS = (
    "attacks/test_all_that_is_seen.py::test_the_docs_list_the_attacks_that_use_each_message",
    "test_docs.py::test_the_exposure_table_equals_the_output_of_explain",
    "test_docs.py::test_a_wheel_installs_nothing_outside_fedtrees",
    "cli/test_reference.py::test_generated_parts_of_the_documentation_are_current[reference/columns.md]",
)
#: Hides the package that is installed in editable mode from processes in the copy.
ONLY_HERE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
"""
APART = """
import importlib.util
from pathlib import Path

class Apart:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top, _, part = name.partition(".")
        folder = Path(__file__).parent / part
        if top == "fedtrees" and part in ("attacks", "defenses", "benchmarks"):
            return importlib.util.spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )

sys.meta_path.insert(0, Apart)
"""
IMPORTS = """
import importlib, json, pkgutil, sys
import fedtrees
assert fedtrees.__file__.startswith(sys.argv[1]), fedtrees.__file__
failed = {}
for found in pkgutil.walk_packages(fedtrees.__path__, "fedtrees."):
    if not found.name.startswith("fedtrees.benchmarks"):  # which is about everything
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("fedtrees"):
                failed[found.name] = str(error)
print(json.dumps(failed))
"""


def imports_fail(folder):
    """Return the modules of a layout that cannot be imported without the removed family."""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", IMPORTS, str(folder)],
        cwd=folder, env=_environment(folder), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout.splitlines()[-1])


def _environment(folder):
    """Return an environment in which only the copy is imported."""
    return {**os.environ, "PYTHONPATH": str(folder)}


def main(name, *arguments):
    """Remove a family from a copy and run the remaining tests."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        package = without(name, target)
        for part in FOLDERS:  # separate folders, as in the repository
            if part != "fedtrees":
                shutil.move(package / part, target / part)
        (target / "sitecustomize.py").write_text(ONLY_HERE + APART)
        pages = (page.name for page in ROOT.glob("*.md"))
        for part in ("docs", "constraints.txt", "CITATION.cff", ".zenodo.json", ".ci", *pages):
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target / part)
        shutil.copytree(ROOT / "tests", target / "tests", ignore=shutil.ignore_patterns(name))
        excluded = [f"--ignore-glob=*/test_{of}.py" for of in ABOUT_ALL]
        excluded += [f"--deselect=tests/{of}" for of in ABOUT_DOCS]
        command = [sys.executable, "-m", "pytest", *excluded, *arguments]
        sys.exit(
            subprocess.run(command, cwd=target, env=_environment(target), check=False).returncode
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
