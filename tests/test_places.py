"""Claims, roles and layouts are named in few files, so that adding one changes few files.

The tests count names in code, not words in docstrings. Before adding a file to a list here, check
whether the new item can be described by its module instead.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from fedtrees.core.claims import (
    BatchRows,
    BinClassCounts,
    Branches,
    Claim,
    ClassShares,
    ColumnBins,
    ColumnRanks,
    ColumnValues,
    CutWindows,
    Entries,
    EveryRecord,
    Labels,
    LeafCounts,
    Membership,
    Records,
    RoutedLabels,
    Thresholds,
)
from fedtrees.core.registry import register
from fedtrees.core.transcript import PUBLIC
from fedtrees.data.partition import LAYOUTS

ROOT = Path(__file__).parents[1]
NEW = ROOT / "fedtrees" / "cli" / "templates"  # templates of `fedtrees plugin new`
HOUSE = sorted(p for p in (ROOT / "fedtrees").rglob("*.py") if p.parent != NEW)
EVERYTHING = [*HOUSE, *sorted((ROOT / "defenses").rglob("*.py"))]


@cache
def tree_of(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def place(path):
    """Return a path relative to the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def imported(path):
    """Return the pairs of module and name that a file imports."""
    nodes = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.ImportFrom)]
    return {(node.module, alias.name) for node in nodes for alias in node.names}


def imports(path, module, name):
    """Return whether a file imports a name."""
    return (module, name) in imported(path)


@cache
def strings(path):
    """Return the string constants of a file except for docstrings."""
    tree = tree_of(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


CLAIMS = {
    # The conformance checks search for rows that were copied from outside a view.
    Records: {
        "fedtrees/metrics/victims_rows.py",
        "fedtrees/conformance/attacks.py",
        "fedtrees/bounds/ceilings.py",  # compares them with a ceiling
    },
    EveryRecord: {"fedtrees/metrics/victims_rows.py"},
    # The audit reports the counts themselves.
    LeafCounts: {"fedtrees/metrics/leaf_counts.py", "fedtrees/model_audit/attack.py"},
    # An attack that receives candidates may not claim anything else.
    Membership: {
        "fedtrees/metrics/membership.py",
        "fedtrees/experiments/evaluate.py",
        "fedtrees/bounds/ceilings.py",
    },
    BatchRows: {
        "fedtrees/metrics/batches.py",
    },
    Labels: {"fedtrees/metrics/labels.py", "fedtrees/bounds/tables.py"},
    ColumnValues: {"fedtrees/metrics/column_values.py"},
    RoutedLabels: {"fedtrees/metrics/labels.py"},
    Branches: {"fedtrees/metrics/thresholds.py"},
    ColumnRanks: {"fedtrees/metrics/splits.py"},
    ColumnBins: {"fedtrees/metrics/bins.py", "fedtrees/bounds/tables.py"},
    Thresholds: {"fedtrees/metrics/thresholds.py"},
    Entries: {"fedtrees/metrics/entries.py"},
    BinClassCounts: {"fedtrees/metrics/bins.py"},
    CutWindows: {"fedtrees/metrics/splits.py"},
    ClassShares: {"fedtrees/metrics/labels.py"},
}


def test_every_claim_type_is_listed():
    from fedtrees.core import claims

    claim_types = {
        value
        for value in vars(claims).values()
        if isinstance(value, type) and issubclass(value, Claim)
    }
    assert claim_types - {Claim} == set(CLAIMS)


@pytest.mark.long
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.__name__)
def test_a_claim_is_named_by_its_metric_and_by_attacks(claim):
    places = {
        place(path) for path in EVERYTHING if imports(path, "fedtrees.core.claims", claim.__name__)
    }
    assert places - {"fedtrees/model_audit/attack.py"} == CLAIMS[claim] - {
        "fedtrees/model_audit/attack.py"
    }


def test_packages_that_score_reach_metrics_through_the_registry():
    metric_modules = {register.get("metric", name).__module__ for name in register.names("metric")}
    assert all(module.startswith("fedtrees.metrics.") for module in metric_modules)
    imports_of_metrics = {
        (place(path), node.module)
        for path in HOUSE
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in metric_modules
    }
    # All other packages reach metrics through the registry.
    scoring = {
        path for path, _ in imports_of_metrics if not path.startswith("fedtrees/model_audit/")
    }
    assert all(path.startswith("fedtrees/metrics/") for path in scoring)


def spelled(path, name):
    """Return whether a file contains a layout as a string in a statement about layouts."""
    if "layout" not in path.read_text().lower():
        return False
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Compare, ast.Call, ast.arg)):
            continue
        values = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        names |= {k.arg for k in ast.walk(node) if isinstance(k, ast.keyword)}
        if name in values and any("layout" in str(n).lower() for n in names):
            return True
    return False


def test_layouts_are_named_by_the_data_layer_and_by_protocols():
    for name in LAYOUTS:
        places = {place(path) for path in EVERYTHING if spelled(path, name)}
        assert "fedtrees/data/partition.py" in places
        site_code = {"fedtrees/federation/site.py"}  # columns that the table of a site must have
        assert {
            path for path in places - site_code if not path.startswith("fedtrees/protocols/")
        } == {"fedtrees/data/partition.py"}


#: Roles of horizontal federations, and the files besides those of `THEIRS` that may name them.
ROLES = {
    # The central engines use the random streams of the federation with which they are compared, and
    # a captured run has no protocol that defines the aggregator.
    "server": {
        "fedtrees/core/streams.py",
        "fedtrees/capture/xgboost_training.py",
        *(f"fedtrees/federation/{m}.py" for m in ("agreement", "attack", "deployment", "flare")),
    },  # terms of NVFlare
    # A suite without a threat uses the last client.
    "client": {"fedtrees/experiments/suite.py", "fedtrees/federation/deployment.py"},
    # The name of the option `--client-column` begins in the same way.
    "client-": {
        "fedtrees/core/local_data.py",
        "fedtrees/core/streams.py",
        "fedtrees/data/client_tables.py",
    },
}


#: Packages that know the protocols: these, defenses, and canaries of audits.
THEIRS = ("fedtrees/protocols/", "fedtrees/privacy_audit/", "defenses/")


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_roles_are_named_by_protocols_and_defenses(role):
    places = {
        place(path)
        for path in EVERYTHING
        if any(
            text.startswith(role) if role.endswith("-") else text == role for text in strings(path)
        )
    }
    other_places = {path for path in places if not path.startswith(THEIRS)}
    assert other_places == ROLES[role]


def test_the_holder_of_the_released_model_has_one_name():
    assert PUBLIC == "public"
    places = {place(path) for path in HOUSE if imports(path, "fedtrees.core.transcript", "PUBLIC")}
    assert places == {
        "fedtrees/core/network.py",  # sends the model to it
        "fedtrees/messages/models.py",  # contents of its view
        "fedtrees/core/threat.py",  # the same
        "fedtrees/bounds/views.py",  # the same, of enumerated tables
        "fedtrees/federation/log.py",  # the same, of a run between sites
        "fedtrees/federation/attack.py",  # the same, when such a log is read
        "fedtrees/experiments/suite.py",  # possible adversary
        "fedtrees/api/recommend.py",  # the same, of every recipe that is tried
        "fedtrees/report/coverage.py",  # adversary that may be missing
        "fedtrees/report/adversaries.py",  # the same
        "fedtrees/conformance/protocols.py",  # its messages need not be declared
        "fedtrees/conformance/attacks.py",  # the same
    }


@pytest.mark.long
def test_shared_code_names_no_role_of_vertical_federations():
    vertical = ROOT / "fedtrees" / "protocols" / "vertical"
    columns = [
        vertical.parent / "settings.py",
        vertical.parent / "regression" / "vertical.py",
    ]
    for path in (p for p in HOUSE if vertical not in p.parents and p not in columns):
        assert not {"active", "passive", "arbiter", "querier"} & set(strings(path)), place(path)
