"""Every message that reveals rows is used by an attack: without the message, some attack returns
another guess.

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
# Messages that reveal rows and that no attack uses, each with the reason.
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
PARAMETERS_OF = {
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
        Spec(name, PARAMETERS_OF.get(name, SMALL))
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
def train_setting(setting: int):
    clients, schema = sample_federation(rows=90)
    local_data = over_clients(clients)
    defense = make_defense(parse_composed([DEFENDED.get(setting, "none")])[0])
    protocol = register.make("protocol", RUNS[setting])
    return train(protocol, local_data, schema, defense=defense, seed=3), local_data


def settings_and_principals():
    for setting, spec in enumerate(RUNS):
        for principal in ("client-0", "server", "public"):
            yield pytest.param(setting, principal, id=f"{spec} {principal}")


def claims_digest(attack: str, view: View) -> str | None:
    """Return a digest of the claims of an attack, or None if the attack does not apply to the
    view.
    """
    attack_object = register.make("attack", parse_grid(attack)[0])
    if attack_object.inapplicable(view):
        return None
    try:
        return digest(content(attack_object.run(view, Streams(0).rng("attack")).claims))
    except FedtreesError:  # A view without some messages may contain an incomplete tree.
        return "no guess"


def revealing_types(view: View) -> list[type]:
    """Return the types of readable messages from other parties that reveal information about
    rows.
    """
    types = {
        type(item.message): None
        for item in view.seen
        if not has_sealed_field(item.message)
        and (item.opened or item.sender not in view.principals)
        and item.message.reveals & OF_ROWS
    }
    return list(types)


@cache
def readers(setting: int, principal: str) -> dict[str, list[str]]:
    """Return, by type of message, the attacks whose claims change if the messages are removed."""
    run, local_data = train_setting(setting)
    if principal not in run.transcript.roles:
        return {}
    view = view_of(run, (principal,), local_data)
    digests = {attack: claims_digest(attack, view) for attack in ATTACKS}
    attacks_by_type = {}
    for message_type in revealing_types(view):
        reduced_view = replace(
            view, seen=tuple(item for item in view.seen if type(item.message) is not message_type)
        )
        attacks_by_type[message_type.__name__] = [
            attack.partition("[")[0]
            for attack, guess in digests.items()
            if guess is not None and claims_digest(attack, reduced_view) != guess
        ]
    return attacks_by_type


@pytest.mark.long
@pytest.mark.parametrize(("setting", "principal"), list(settings_and_principals()))
def test_messages_that_reveal_rows_are_used_by_an_attack_or_listed_with_a_reason(
    setting, principal
):
    reasons = UNREAD | UNREAD_IN.get(RUNS[setting].name, {})
    if "early_stopping_rounds" in RUNS[setting].params:
        reasons |= UNREAD_WHERE_ROWS_ARE_HELD_OUT
    unread = {
        message_type for message_type, attacks in readers(setting, principal).items() if not attacks
    }
    assert unread <= set(reasons)


def table() -> list[list[str]]:
    """Return the lines of the table in the docs: protocol, role, messages, and the attacks under
    default parameters.
    """
    lines: dict[tuple[str, str, str], list[str]] = {}
    for setting, spec in enumerate(RUNS):
        for principal, role in (("client-0", "client"), ("public", "public"), ("server", "server")):
            if spec.params != PARAMETERS_OF.get(spec.name, SMALL):
                continue
            for message_type, attacks in readers(setting, principal).items():
                names = ", ".join(f"`{attack}`" for attack in sorted(attacks))
                reason = (UNREAD | UNREAD_IN.get(spec.name, {})).get(message_type, "nobody")
                lines.setdefault((f"`{spec.name}`", role, names or reason), []).append(
                    f"`{message_type}`"
                )
    return [[name, role, ", ".join(kinds), text] for (name, role, text), kinds in lines.items()]


@pytest.mark.long
def test_the_docs_list_the_attacks_that_use_each_message():
    text = (Path(__file__).parents[2] / "docs" / "reference/exposure.md").read_text()
    table_lines = text.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table_lines]
    documented = [
        [name, role, *cells]
        for names, roles, *cells in rows
        for name in names.split(", ")
        for role in roles.split(", ")
        if not register.get("protocol", name.strip("`")).missing()
    ]
    assert sorted(documented) == sorted(table())


def merge_lines(lines: list[list[str]], column: int) -> list[list[str]]:
    """Merge lines that differ only in one column."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        groups.setdefault((*line[:column], *line[column + 1 :]), []).append(line[column])
    return [
        [*others[:column], ", ".join(merged), *others[column:]] for others, merged in groups.items()
    ]


if __name__ == "__main__":
    print("\n".join(f"| {' | '.join(line)} |" for line in merge_lines(merge_lines(table(), 1), 0)))
