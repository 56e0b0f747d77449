"""Benchmarks of a numeric target measure utility and skip metrics of classes."""

import numpy as np
import pytest

from fedtrees.core.reasons import Unfit
from fedtrees.experiments.evaluate import (
    evaluate_attack,
    evaluate_reference,
    evaluate_training,
    run_training,
)
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite

OPTIONS = {
    "data": ["diabetes-regression"],
    "protocols": ["fedtree-hist[trees=2,max_depth=2]"],
    "attacks": ["timberstrike-published"],
    "threats": ["client"],
}


def test_numbers_are_scored_by_r2_and_rmse_and_attacks_on_classes_are_skipped(tmp_path):
    bench = BenchSession(Suite("numbers").override(OPTIONS, "1"), tmp_path / "run")
    cells = list(bench.plan.tasks())
    (train,) = [cell for cell in cells if cell.is_training]
    federation = federation_of(train.federation_config, None)
    training = run_training(train, federation)
    test = federation.test
    rows = evaluate_training(train, federation, training, 0.0, 0.0).rows
    scores = {row["metric"]: row["value"] for row in rows}
    error = training.predict(test.X) - test.y
    assert np.isclose(scores["rmse"], np.sqrt(np.mean(error**2)))
    assert np.isclose(scores["r2"], 1 - np.mean(error**2) / test.y.var())
    (reference,) = [cell for cell in cells if cell.stage == "reference"]
    reference_rows = evaluate_reference(reference, federation).rows
    training_targets = np.concatenate([data.y for data in federation.local_data.values()])
    assert [(r["protocol"], r["metric"]) for r in reference_rows] == [
        (p, m) for p in ("local-only", "mean-target") for m in ("r2", "rmse")
    ]
    assert np.isclose(
        reference_rows[-1]["value"], np.sqrt(np.mean((test.y - training_targets.mean()) ** 2))
    )
    (attack,) = [cell for cell in cells if cell.stage == "attack"]
    with pytest.raises(Unfit, match="uses the classes of rows"):
        evaluate_attack(attack, federation, training, None)
