"""Write the models of one LightGBM version that the importer is tested with.

Run it once per version, in an environment of that version (see README.md). It adds the raw scores
that version predicts to ``expected.json``. The list of training parameters, which the importer
ignores, is cut from the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightgbm as lgb
import numpy as np
from make_xgboost_models import label, table, write

COMMON = {"num_leaves": 4, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 10}
RF = {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}
MODELS = {
    "binary": {"objective": "binary"},
    "multiclass": {"objective": "multiclass", "num_class": 3, "num_leaves": 3},
    "regression": {"objective": "regression", "use_missing": False},
    "forest": {"objective": "binary", **RF},
    "stump": {"objective": "regression", "min_data_in_leaf": 1000},
}


def main() -> None:
    folder = Path(__file__).parent
    X, y = table()
    expected = {}
    for name in sys.argv[1:] or MODELS:
        kind = "binary" if name == "forest" else name
        data = lgb.Dataset(X.astype(np.float64), label(kind, y, X))
        booster = lgb.train({**COMMON, **MODELS[name]}, data, 2)
        text = booster.model_to_string()
        head, tail = text.split("end of trees")[0], "end of trees\n"
        stem = f"lightgbm-{lgb.__version__}-{name}.txt"
        (folder / stem).write_text(head + tail)
        # Raw scores of a random forest are the sum of its two trees; it predicts with their mean.
        share = 0.5 if name == "forest" else 1
        scores = share * booster.predict(X[:12].astype(np.float64), raw_score=True)
        expected[stem] = np.asarray(scores).round(7).tolist()
    write(folder / "expected.json", expected)


if __name__ == "__main__":
    main()
