"""Write the models of one XGBoost version that the importer is tested with.

Run it once per version, in an environment of that version (see README.md). It adds the margins
that version predicts to ``expected.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

MODELS = {
    "binary": ({"objective": "binary:logistic", "max_depth": 3}, 3),
    "multiclass": ({"objective": "multi:softprob", "num_class": 3, "max_depth": 2}, 2),
    "regression": ({"objective": "reg:squarederror", "max_depth": 3}, 2),
}
EXTRA = {
    "softmax": ({"objective": "multi:softmax", "num_class": 3, "max_depth": 1}, 2),
    "logitraw": ({"objective": "binary:logitraw", "max_depth": 2, "base_score": 0.3}, 2),
    "parallel": ({"objective": "binary:logistic", "max_depth": 2, "num_parallel_tree": 3}, 2),
    "pruned": ({"objective": "binary:logistic", "tree_method": "exact", "gamma": 12}, 2),
    "parallel-multiclass": (
        {"objective": "multi:softprob", "num_class": 3, "max_depth": 1, "num_parallel_tree": 2},
        2,
    ),
}


def table():
    """Return 200 rows of 3 features with holes, and a class of three."""
    rng = np.random.default_rng(7)
    X = np.round(rng.normal(size=(200, 3)), 2).astype(np.float32)
    y = (X[:, 0] > 0.2).astype(int) + (X[:, 0] * X[:, 1] > 0.3)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, y


def label(name, y, X):
    if name in ("binary", "logitraw", "parallel", "pruned"):
        return y > 0
    return y if "multiclass" in name or name == "softmax" else y * 10 + np.nan_to_num(X[:, 2])


def write(path, expected):
    """Add the predictions of a version to the file, with one entry per line."""
    existing = json.loads(path.read_text()) if path.exists() else {}
    lines = [
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in sorted((existing | expected).items())
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    # It is imported here, because the models of LightGBM are made from the same table.
    import xgboost as xgb

    folder = Path(__file__).parent
    X, y = table()
    rows = X[:12]
    expected = {"rows": [[None if np.isnan(x) else float(x) for x in row] for row in rows]}
    models = MODELS | (EXTRA if "extra" in sys.argv else {})
    for name, (settings, rounds) in models.items():
        subsample = {"subsample": 0.8, "seed": 3} if "parallel" in name else {}
        data = xgb.DMatrix(X, label(name, y, X))
        settings = {"nthread": 1, "tree_method": "hist", **settings, **subsample}
        booster = xgb.train(settings, data, rounds)
        margins = booster.predict(xgb.DMatrix(rows), output_margin=True)
        stems = [f"xgboost-{xgb.__version__}-{name}.json"]
        if name == "multiclass":
            stems.append(f"xgboost-{xgb.__version__}-{name}.ubj")
        for stem in stems:
            booster.save_model(folder / stem)
            expected[stem] = margins.astype(float).round(7).tolist()
    write(folder / "expected.json", expected)


if __name__ == "__main__":
    main()
