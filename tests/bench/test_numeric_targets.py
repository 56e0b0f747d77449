"""A bench of a number to predict: utility is measured, what is scored for classes is skipped."""

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


def test_numbers_are_scored_by_r2_and_rmse_and_attacks_on_classes_say_so(tmp_path):
    bench = BenchSession(Suite("numbers").override(OPTIONS, "1"), tmp_path / "run")
    cells = list(bench.plan.tasks())
    (train,) = [c for c in cells if c.is_training]
    federation = federation_of(train.federation_config, None)
    training = run_training(train, federation)
    test = federation.test
    rows = evaluate_training(train, federation, training, 0.0, 0.0).rows
    found = {row["metric"]: row["value"] for row in rows}
    error = training.predict(test.X) - test.y
    assert np.isclose(found["rmse"], np.sqrt(np.mean(error**2)))
    assert np.isclose(found["r2"], 1 - np.mean(error**2) / test.y.var())
    (reference,) = [c for c in cells if c.stage == "reference"]
    simple = evaluate_reference(reference, federation).rows
    held = np.concatenate([h.y for h in federation.local_data.values()])
    assert [(r["protocol"], r["metric"]) for r in simple] == [
        (p, m) for p in ("local-only", "mean-target") for m in ("r2", "rmse")
    ]
    assert np.isclose(simple[-1]["value"], np.sqrt(np.mean((test.y - held.mean()) ** 2)))
    (attack,) = [c for c in cells if c.stage == "attack"]
    with pytest.raises(Unfit, match="uses the classes of rows"):
        evaluate_attack(attack, federation, training, None)
