"""Which modules are of which family: what a family stands on beside them is shared.

`python tests/families.py NAME ...` removes families from a copy and runs the tests of all else.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Modules of each family, below ``fedtrees``; what stands above all of them is in `ABOVE`.
FAMILIES = {
    "horizontal": (
        "protocols.horizontal", "attacks.timberstrike", "attacks.joint", "attacks.lattice",
        "attacks.peeling", "attacks.sketches", "defenses.laplace_hist", "defenses.hist_rounding",
        "defenses.sketch_rounding", "defenses.laplace_gradient", "defenses.min_bin",
        "defenses.mask_sum_hessian", "defenses.dp_quantile_cuts",
    ),
    "vertical": (
        "protocols.vertical", "messages.vertical", "messages.vertical_model", "attacks.labels",
        "attacks.orders", "attacks.bins", "attacks.queries", "defenses.id_lmid",
        "defenses.grafting", "defenses.label_noise", "defenses.reduced_leakage",
    ),
    "forests": (
        "protocols.forests", "messages.forests", "messages.private_forests", "attacks.forests",
        "attacks.leaves", "defenses.min_leaf",
    ),
    "networks": (
        "neural", "protocols.networks", "messages.networks", "attacks.gradients",
        "defenses.dp_sgd", "defenses.updates",
    ),
    "tree-networks": (
        "protocols.tree_networks", "messages.tree_networks", "attacks.second_phase",
    ),
    "regressions": (
        "protocols.regression", "messages.regression", "attacks.regression",
        "defenses.decrypted_precision",
    ),
    "queries": ("defenses.answers", "defenses.endpoint"),
    "crypto": ("crypto", "defenses.paillier", "defenses.masking", "defenses.real_sums"),
    "audit": ("audit", "cli.audit"),
}  # fmt: skip
#: What puts families together.
ABOVE = ("cli", "api", "estimators", "benchmarks", "audit")
#: The one family that stands on others.
CROSSING = {("tree-networks", "networks"), ("tree-networks", "horizontal")}
FOLDERS = {"fedtrees": "", "attacks": "attacks", "defenses": "defenses", "benchmarks": "benchmarks"}


def below(module, parts):
    return any(module == p or module.startswith(p + ".") for p in parts)


def family(module):
    """Return the family of a module, as it is called below ``fedtrees``; None: shared."""
    return next((name for name, parts in FAMILIES.items() if below(module, parts)), None)


def modules(root=ROOT):
    """Yield the name below ``fedtrees`` and the file of every module."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if "templates" not in parts:
                name = ".".join((*filter(None, (package,)), *parts))
                yield name.removesuffix(".__init__").removesuffix("__init__"), path


def imports(path):
    """Yield what a module imports of ``fedtrees``, and what of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedtrees."):
            base = node.module.removeprefix("fedtrees.")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def crossings(root=ROOT):
    """Return, by the families that import and are imported, the modules that do."""
    found = defaultdict(set)
    for module, path in modules(root):
        if below(module, ABOVE):
            continue
        for other in imports(path):
            ends = family(module), family(other)
            if ends[1] is not None and ends[0] != ends[1]:
                found[ends].add((module, other))
    return dict(found)
