"""Just above the limit of guessed rows an attack is no worse than the blind baseline."""

import numpy as np

from fedtrees.core.claims import Records
from fedtrees.core.registry import register
from fedtrees.core.threat import Threat
from fedtrees.experiments.evaluate import blind_baseline, evaluate_blind, run_training, score_guess
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import build_plan
from fedtrees.experiments.suite import Suite
from fedtrees.protocols.views import view_of

GUESSED = 90


def test_an_attack_just_above_the_limit_is_not_below_blind(tmp_path, monkeypatch):
    """Everything runs from the file to the scores, except for the separate attack process."""
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(250, 6)) @ rng.normal(size=(6, 6)), 2)
    y = (X[:, 0] + X[:, 1] + rng.normal(size=250) > 0).astype(int)
    names, path = ",".join([*(f"x{i}" for i in range(6)), "y"]), tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([X, y]), "%g", ",", header=names, comments="")
    options = {
        "data": [{"csv": str(path), "target": "y"}],
        "protocols": ["fedtree-hist[trees=3,max_depth=3]"],
        "defenses": ["none"],
        "attacks": ["timberstrike"],
    }
    plan = build_plan(Suite.load("smoke").override(options))
    (cell,) = [task for task in plan.tasks() if task.stage == "attack"]
    federation = federation_of(cell.federation_config, None)
    roles = dict(cell.federation_config.roles)
    principals = Threat.parse(cell.threat, roles).principals(roles)
    training = run_training(cell.training, federation)
    case = federation.case(roles, principals, 0, cell.threat, training)
    victims = sum(
        len(data)
        for party_name, data in federation.local_data.items()
        if party_name not in principals
    )
    assert victims > GUESSED + 30
    monkeypatch.setattr("fedtrees.blind_baselines.rows.MOST_ROWS", victims - 1)
    monkeypatch.setattr("fedtrees.blind_baselines.rows.GUESSED", GUESSED)
    blind = blind_baseline(evaluate_blind(plan.blind[0], federation).rows)
    view = view_of(training, principals, federation.local_data)
    guess = register.make("attack", cell.attack).run(view, np.random.default_rng(0))
    assert [len(task.table) for task in guess.claims if isinstance(task, Records)] == [GUESSED]
    scores = {row["metric"]: row for row in score_guess("timberstrike", guess, case, blind)}
    # The blind baseline is the best of many guesses in hindsight, so a small loss is allowed.
    for name in ("ra", "gower"):
        assert scores[name]["advantage"] > -0.03, name
