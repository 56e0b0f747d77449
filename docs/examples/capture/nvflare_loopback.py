"""Train XGBoost with the recipes of NVFlare in its simulator, and capture the messages.

python docs/examples/capture/nvflare_loopback.py histogram --out nvflare
fedtrees capture attack nvflare/run.capture --as server --truth nvflare/worker-0.csv ...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from loopback import columns_of, parts_of, table
from numpy.typing import NDArray

KINDS = ("histogram", "vertical", "bagging", "cyclic")


def write_site(folder: Path, rows: NDArray[np.float32], labels: bool) -> None:
    """Write rows in the format of NVFlare's CSV loader: no header, and the label first."""
    folder.mkdir(parents=True)
    first = np.column_stack([rows[:, -1:] if labels else rows[:, :0], rows[:, :-1]])
    for name in ("train.csv", "valid.csv"):  # NVFlare requires both, which are equal here
        np.savetxt(folder / name, first, "%.9g", ",")


def recipe(kind: str, sites: list[str], rows: Path, trees: int, secure: bool, params: Any) -> Any:
    """Return a recipe of NVFlare, with its defaults for all other settings."""
    from nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader import CSVDataLoader
    from nvflare.app_opt.xgboost.recipes.bagging import XGBBaggingRecipe
    from nvflare.app_opt.xgboost.recipes.histogram import XGBHorizontalRecipe
    from nvflare.app_opt.xgboost.recipes.vertical import XGBVerticalRecipe
    from nvflare.recipe import set_per_site_config

    if kind in ("histogram", "vertical"):
        boosting = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1}
        owner = {"label_owner": sites[0]} if kind == "vertical" else {}
        job_recipe = (XGBVerticalRecipe if owner else XGBHorizontalRecipe)(
            name=kind, min_clients=len(sites), num_rounds=trees, secure=secure,
            client_ranks={site: k for k, site in enumerate(sites)}, **owner,
            xgb_params={"max_depth": 3, "eta": 0.3, **boosting, **params},
        )  # fmt: skip
    else:
        job_recipe = XGBBaggingRecipe(
            name=kind, min_clients=len(sites), training_mode=kind, num_rounds=trees,
            **{"max_depth": 3, "learning_rate": 0.3, "local_subsample": 1.0, **params}, nthread=1,
        )  # fmt: skip
    loader = CSVDataLoader(folder=str(rows))
    set_per_site_config(job_recipe, {site: {"data_loader": loader} for site in sites})
    return job_recipe


def patient(job: Path) -> None:
    """Increase the time limits for slow machines: by default, sites must start within a minute."""
    config = job / "app_server" / "config" / "config_fed_server.json"
    settings = json.loads(config.read_text())
    for workflow in settings["workflows"]:
        if workflow["path"].endswith("XGBFedController"):
            workflow["args"] |= {"configure_task_timeout": 600, "start_task_timeout": 300}
    config.write_text(json.dumps(settings))


def train(
    parts: list[NDArray[np.float32]], kind: str, out: Path, trees: int, secure: bool, params: Any
) -> None:
    """Train with one site per part, in a job that `fedtrees capture record` has modified."""
    sites = [f"site-{k + 1}" for k in range(len(parts))]
    for site, rows in zip(sites, parts, strict=True):
        write_site(out / "rows" / site, rows, kind != "vertical" or site == sites[0])
    recipe(kind, sites, (out / "rows").resolve(), trees, secure, params).export(str(out / "jobs"))
    patient(out / "jobs" / kind)
    command = [sys.executable, "-m", "fedtrees.cli.main", "capture", "nvflare", "--format", "json"]
    job = ["--job", str(out / "jobs" / kind), "-o", str(out / "run.capture")]
    done = subprocess.run([*command, *job], check=True, capture_output=True, text=True)
    simulator = [str(Path(sys.executable).with_name("nvflare")), "simulator", "-w", str(out / "ws")]
    # each site needs a thread, because the histograms of all sites are summed at the same time
    simulator += ["-c", ",".join(sites), "-t", str(len(sites)), json.loads(done.stdout)["job"]]
    with (out / "nvflare.log").open("w") as log:
        subprocess.run(simulator, check=True, stdout=log, stderr=subprocess.STDOUT)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--out", type=Path, required=True, help="folder for capture and rows")
    parser.add_argument("--csv", type=Path, help="a table of numbers, the label 0 or 1 last")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=210)
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--secure", action="store_true", help="of histograms or columns: as NVFlare says it"
    )
    parser.add_argument("--params", type=json.loads, default={})
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.csv:
        rows = np.loadtxt(arguments.csv, np.float32, delimiter=",", skiprows=1)
    else:
        rows = table(arguments.rows, 3, arguments.seed, 1)
    deal = columns_of if arguments.kind == "vertical" else parts_of
    parts = deal(rows, arguments.workers, arguments.out)
    train(parts, arguments.kind, arguments.out, arguments.trees, arguments.secure, arguments.params)


if __name__ == "__main__":
    main()
