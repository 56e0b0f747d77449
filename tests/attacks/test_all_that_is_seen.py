"""Nothing that reveals rows lies in a view unread: leaving it out changes what an attack says.

`PYTHONPATH=tests python tests/attacks/test_all_that_is_seen.py` prints the table of the docs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from digests import content, digest
from federations import sample_federation

from fedtrees.core.errors import FedtreesError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal, has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

OF_ROWS = {Reveal.FEATURES, Reveal.LABELS, Reveal.COUNTS}
ATTACKS = (
    "sketch-reading[draws=1]",
    "timberstrike[chains=1]",
    "histogram-peeling[work=3e7]",
    "lattice",
    "joint[chains=1,moves=20,samples=1,exact=false]",
    "draft-dp[work=0.001]",
    "forest-boxes[work=0.01]",
    "tableak[batches=1,restarts=1,steps=5]",
    "leaf-inversion[batches=1,restarts=1,steps=5,starts=own]",
    "bin-mapper-reading",
    "single-row-bins",
    "ring-segments",
)
FORESTS = "no attack assembles the trees of a forest during its training"
HELD_OUT = "no attack uses histograms of trainings with a validation part"
#: Messages that reveal rows and are read by no attack, each with the reason.
UNREAD = {
    "LabelSums": "reveals only the base score, which is also broadcast",
    "GridRequest": "its borders follow from sums over all clients, and attacks use the cut points",
    "ClassTotals": FORESTS,
    "ClassCounts": FORESTS,
    "LeafClasses": FORESTS,
    "LocalForest": FORESTS,
    "PooledForest": FORESTS,
    "ForestModel": FORESTS,
    "LeafClassCounts": FORESTS,
    "PrivateForest": FORESTS,
    "ColumnSums": "reveals only the means and deviations of the standardisation, which attacks use",
}
FEW_ROWS = "`regression-inversion` uses it if one other client has few rows"
SUMS = "a sum over all clients; no attack separates their rows"
STEPS = "no attack separates the local steps of single clients from averaged weights"
UNREAD_IN = {
    "fedavg-mlp": {"Standardisation": STEPS, "NetworkWeights": STEPS},
    "fedxgbllr": {"NetworkWeights": "no attack computes the steps of Adam from averaged weights"},
    "forest-hist": {"CutPoints": FORESTS},
    "lightgbm-data": dict.fromkeys(
        ("WeightedLabels", "OwnStart"), "follows from the class counts, which attacks use"
    ),
    "xgboost-ring": {
        "RowCount": "follows from the sketches, which attacks use",
        **dict.fromkeys(
            ("LabelShare", "GradientTotals"), "`ring-segments` uses it for a diagnostic only"
        ),
    },
    "horizontal-regression": {
        **dict.fromkeys(("CommonScales", "AverageWeights"), FEW_ROWS),
        **dict.fromkeys(("Moments", "LocalWeights"), SUMS),
    },
}
UNREAD_WHERE_ROWS_ARE_HELD_OUT = {
    "CutPoints": HELD_OUT,
    "GlobalHistogram": HELD_OUT,
    "Histogram": HELD_OUT,
    "BoostedModel": HELD_OUT,
    "ValidationLoss": "a secure sum over the validation rows",
    "StopBoosting": "reveals only the number of trees, which the model contains",
}
SMALL = {"trees": 5, "max_depth": 4}
NETWORK = {"rounds": 2, "batch": 4, "units": 8}
SMALL_OF = {
    "dp-forest": {"trees": 5, "depth": 4},
    "ebm-merge": {"outer_bags": 2, "max_rounds": 50},
    "dp-ebm": {"max_rounds": 50},
    "fedsgd-mlp": NETWORK,
    "horizontal-regression": {"rounds": 3},
    "lightgbm-data": {"trees": 5, "num_leaves": 8, "min_data_in_leaf": 3},
    "fedavg-mlp": {**NETWORK, "local_rows": 4},
    "fedxgbllr": {**SMALL, "rounds": 2, "batch": 4, "sends": "gradient"},
}
RUNS = [
    *(
        Spec(name, SMALL_OF.get(name, SMALL))
        for name in register.names("protocol")
        if register.get("protocol", name).layout == "horizontal"
        and not register.get("protocol", name).missing()
    ),
    Spec("fedtree-hist", {**SMALL, "cuts": "equal-width"}),
    Spec("nvflare-hist", {**SMALL, "early_stopping_rounds": 1}),
    Spec("nvflare-hist", {**SMALL, "base_score": 0.5}),
]
DEFENDED = {len(RUNS) - 1: "grid-cuts[cells=64]"}


@cache
def run_of(which: int):
    clients, schema = sample_federation(rows=90)
    held = over_clients(clients)
    defense = make_defense(parse_composed([DEFENDED.get(which, "none")])[0])
    made = register.make("protocol", RUNS[which])
    return train(made, held, schema, defense=defense, seed=3), held


def views():
    for which, spec in enumerate(RUNS):
        for who in ("client-0", "server", "public"):
            yield pytest.param(which, who, id=f"{spec} {who}")


def said(attack: str, view: View) -> str | None:
    """Return a digest of what an attack makes of a view, None where it does not apply."""
    made = register.make("attack", parse_grid(attack)[0])
    if made.inapplicable(view):
        return None
    try:
        return digest(content(made.run(view, Streams(0).rng("attack")).claims))
    except FedtreesError:  # half a tree is none
        return "no guess"


def revealing(view: View) -> list[type]:
    """Return the types of others' readable messages that reveal something of rows."""
    found = {
        type(s.message): None
        for s in view.seen
        if not has_sealed_field(s.message)
        and (s.opened or s.sender not in view.principals)
        and s.message.reveals & OF_ROWS
    }
    return list(found)


@cache
def readers(which: int, who: str) -> dict[str, list[str]]:
    """Return, by the type of message, the attacks that say something else without it."""
    run, held = run_of(which)
    if who not in run.transcript.roles:
        return {}
    view = view_of(run, (who,), held)
    whole = {attack: said(attack, view) for attack in ATTACKS}
    found = {}
    for kind in revealing(view):
        less = replace(view, seen=tuple(s for s in view.seen if type(s.message) is not kind))
        found[kind.__name__] = [
            attack.partition("[")[0]
            for attack, guess in whole.items()
            if guess is not None and said(attack, less) != guess
        ]
    return found


@pytest.mark.long
@pytest.mark.parametrize(("which", "who"), list(views()))
def test_what_reveals_rows_is_read_or_there_is_a_reason(which, who):
    reasons = UNREAD | UNREAD_IN.get(RUNS[which].name, {})
    if "early_stopping_rounds" in RUNS[which].params:
        reasons |= UNREAD_WHERE_ROWS_ARE_HELD_OUT
    unread = {kind for kind, attacks in readers(which, who).items() if not attacks}
    assert unread <= set(reasons)


def table() -> list[list[str]]:
    """Return who reads what under default parameters, as it stands in the docs."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for which, spec in enumerate(RUNS):
        for who, role in (("client-0", "client"), ("public", "public"), ("server", "server")):
            if spec.params != SMALL_OF.get(spec.name, SMALL):
                continue
            for kind, attacks in readers(which, who).items():
                names = ", ".join(f"`{a}`" for a in sorted(attacks))
                reason = (UNREAD | UNREAD_IN.get(spec.name, {})).get(kind, "nobody")
                lines.setdefault((f"`{spec.name}`", role, names or reason), []).append(f"`{kind}`")
    return [[name, role, ", ".join(kinds), text] for (name, role, text), kinds in lines.items()]


@pytest.mark.long
def test_the_docs_say_who_reads_what():
    text = (Path(__file__).parents[2] / "docs" / "reference/exposure.md").read_text()
    shown = text.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in shown]
    told = [
        [name, role, *rest]
        for names, roles, *rest in rows
        for name in names.split(", ")
        for role in roles.split(", ")
        if not register.get("protocol", name.strip("`")).missing()
    ]
    assert sorted(told) == sorted(table())


def joined(lines: list[list[str]], column: int) -> list[list[str]]:
    """Return lines that differ in one column as one."""
    found: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        found.setdefault((*line[:column], *line[column + 1 :]), []).append(line[column])
    return [[*rest[:column], ", ".join(one), *rest[column:]] for rest, one in found.items()]


if __name__ == "__main__":
    print("\n".join(f"| {' | '.join(line)} |" for line in joined(joined(table(), 1), 0)))
