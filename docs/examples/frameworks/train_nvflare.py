"""Train with the XGBoost recipes of NVFlare, in its simulator.

pip install nvflare tensorboard xgboost scikit-learn pandas
python docs/examples/frameworks/train_nvflare.py bagging out
fedtrees model audit out/model.json --truth out/train.csv --target benign

The script writes `model.json` (the model that the server saved, or with histograms every site),
`train.csv` (all rows) and `client-1.csv`, ... (the rows of each client).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from clients import SHARES, TARGET, rows_of, write_rows
from nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader import CSVDataLoader
from nvflare.app_opt.xgboost.recipes.bagging import XGBBaggingRecipe
from nvflare.app_opt.xgboost.recipes.histogram import XGBHorizontalRecipe
from nvflare.recipe import SimEnv, set_per_site_config
from nvflare.recipe.spec import Recipe

SITES = [f"site-{k + 1}" for k in range(len(SHARES))]
KINDS = ("bagging", "bagging-scaled", "cyclic", "histogram")


def write_sites(folder: Path) -> None:
    """Write the rows of each site in the format of NVFlare's CSV loader: no header, label first."""
    for k, site in enumerate(SITES):
        (folder / site).mkdir(parents=True)
        X, y = rows_of(k)
        rows = X.assign(**{TARGET: y})[[TARGET, *X.columns]]
        for name in ("train.csv", "valid.csv"):  # NVFlare requires both, equal here
            rows.to_csv(folder / site / name, index=False, header=False)


def recipe(kind: str, rounds: int, sites: Path) -> Recipe:
    """Return a job without samples of rows, with the defaults of NVFlare for other settings."""
    trees = {"max_depth": 3, "nthread": 1}
    if kind == "histogram":
        params = {**trees, "eta": 0.3, "objective": "binary:logistic", "tree_method": "hist"}
        job_recipe = XGBHorizontalRecipe(
            name=kind, min_clients=len(SITES), num_rounds=rounds, xgb_params=params
        )
    else:
        job_recipe = XGBBaggingRecipe(
            **trees,
            name=kind,
            min_clients=len(SITES),
            training_mode=kind.partition("-")[0],
            num_rounds=rounds,
            lr_mode="scaled" if kind == "bagging-scaled" else "uniform",
            learning_rate=0.3,
            local_subsample=1.0,
        )
    each = zip(SITES, SHARES, strict=True)
    loader = CSVDataLoader(folder=str(sites))
    set_per_site_config(job_recipe, {s: {"data_loader": loader, "lr_scale": p} for s, p in each})
    return job_recipe


def main() -> None:
    """Train, and write the model and the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_sites(Path(folder) / "rows")
        env = SimEnv(clients=SITES, workspace_root=folder)
        recipe(arguments.kind, arguments.rounds, Path(folder) / "rows").execute(env)
        saved = sorted(Path(folder).rglob("*model.json"))
        shutil.copy(saved[0], arguments.out / "model.json")
    write_rows(arguments.out)


if __name__ == "__main__":
    main()
