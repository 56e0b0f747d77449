"""Membership inference on regressions and on networks over trees."""

from dataclasses import replace

import numpy as np
import pytest
from present import here

from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.metrics.membership import auc
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ATTACKS = {"horizontal-regression": "regression-membership", "fedxgbllr": "membership"}
REGRESSION = "horizontal-regression[rounds=60,lr=0.3]"
TREES = "fedxgbllr[trees=8,rounds=2,iterations=8,max_depth=6]"


def train_on_members(protocol, seed, target="y"):
    """Train on 40 of 80 rows with random labels; return the training, the local data, all rows,
    and the mask of members.
    """
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(80, 24)).astype(np.float32), rng.integers(0, 2, 80)
    member = rng.permutation(80) < 40
    features = tuple(Feature(f"x{k}", low=-5, high=5) for k in range(24))
    is_numeric = target == "number"
    schema = Schema(features, "y", classes=() if is_numeric else ("a", "b"))
    rows = Table(X, rng.normal(size=80) if is_numeric else y)
    member_rows = np.flatnonzero(member)
    local_data = over_clients([rows.take(member_rows[:20]), rows.take(member_rows[20:])])
    trained_protocol = register.make("protocol", parse_grid(protocol)[0])
    return train(trained_protocol, local_data, schema, seed=seed), local_data, rows, member


def attack_on(protocol, **options):
    return register.make("attack", Spec(ATTACKS[protocol.partition("[")[0]], options))


@pytest.mark.parametrize(
    ("protocol", "target", "least_auc"),
    [(p, t, least) for p, t, least in ((REGRESSION, "y", 0.7), (REGRESSION, "number", 0.7),
     (TREES, "y", 0.6)) if here("protocol", [p])],
)  # fmt: skip
def test_memorised_rows_are_detected(protocol, target, least_auc):
    aucs = []
    for seed in range(2):
        run, local_data, rows, member = train_on_members(protocol, seed, target)
        view = replace(view_of(run, ("server",), local_data), candidates=rows)
        attack = attack_on(protocol, models=8)
        assert attack.inapplicable(view) is None
        guess = attack.run(view, np.random.default_rng(0))
        aucs.append(auc(guess.claims[0].score, member))
    # The standard deviation of an AUC of 40 members and 40 nonmembers over two seeds is 0.046.
    assert np.mean(aucs) > least_auc


@pytest.mark.parametrize("protocol", here("protocol", [REGRESSION]))
def test_the_server_and_clients_use_the_trained_model(protocol):
    run, local_data, rows, _ = train_on_members(protocol, 0)
    for principal in ("server", "client-0"):
        model = attack_on(protocol).model(view_of(run, (principal,), local_data))
        largest_difference = np.abs(model.predict(rows.X) - run.model.predict(rows.X)).max()
        # A client does not receive the update of the last round.
        assert largest_difference < (0.2 if principal == "client-0" else 1e-9)
