"""Compare the membership attacks and structural checks with sacroml.

``python -m fedtrees.benchmarks.papers sacroml_peer --python PEER`` prints a CSV. PEER is the
interpreter of a separate environment with `sacroml==2.0.1`. It trains models with XGBoost and
attacks them. This process audits the same files and rows.
"""

import json
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.references import boosted_trainer, forest_logits, lira, references
from fedtrees.benchmarks.papers.study import Study
from fedtrees.core.schema import Table
from fedtrees.metrics.membership import FEW, at_few, auc
from fedtrees.model_audit.membership import checks
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.xgboost import from_xgboost_json

#: Trees, depth and min_child_weight of the models.
SETTINGS = ((3, 6, 1.0), (5, 3, 1.0), (10, 4, 1.0), (10, 4, 2.0), (20, 3, 1.0), (20, 6, 4.0),
            (50, 4, 1.0), (70, 4, 4.0), (100, 6, 1.0), (100, 6, 8.0))  # fmt: skip
MODELS = 64
#: Checks of sacroml that correspond to those of `checks`, in their order.
SAME = ("dof_risk", "k_anonymity_risk", "class_disclosure_risk", "smallgroup_risk",
        "unnecessary_risk", "gen_error_risk")  # fmt: skip

#: Program of the peer. Its shadow models are written to the folder of each model.
_PEER = """
import json, sys, time, warnings, logging
warnings.filterwarnings("ignore")
import numpy as np
from xgboost import XGBClassifier
from sacroml.attacks.likelihood_attack import LIRAAttack
from sacroml.attacks.structural_attack import StructuralAttack
from sacroml.attacks.target import Target
logging.disable(logging.CRITICAL)
for folder, trees, depth, weight, shadows in json.loads(sys.argv[1]):
    d = np.load(folder + "/rows.npz")
    model = XGBClassifier(n_estimators=trees, max_depth=depth, min_child_weight=weight, n_jobs=1,
                          tree_method="hist").fit(d["X"], d["y"])
    model.get_booster().save_model(folder + "/model.json")
    parts = {"X_train": d["X"], "y_train": d["y"], "X_test": d["X_rest"], "y_test": d["y_rest"]}
    target = Target(model=model, dataset_name="rows", **parts,
                    **{name + "_orig": part for name, part in parts.items()})
    structural = StructuralAttack(output_dir=folder + "/out", write_report=False)
    structural.attack(target)
    attack = LIRAAttack(output_dir=folder + "/out", write_report=False, n_shadow_models=shadows,
                        mode="online-carlini", report_individual=True)
    begun = time.process_time()
    attack.attack(target)
    checks = {k: bool(v) for k, v in vars(structural.results).items() if k.endswith("_risk")}
    found = {"checks": checks, "scores": [float(s) for s in attack.result["member_prob"]],
             "cpu": time.process_time() - begun}
    print(json.dumps(found), flush=True)
"""


def tables() -> dict[str, Table]:
    """Return the rows by name. Half of them are used for training."""
    from sklearn.datasets import load_breast_cancer, make_classification

    both = {
        "breast-cancer": load_breast_cancer(return_X_y=True),
        "mixed-1000": make_classification(1000, 20, n_informative=8, flip_y=0.1, random_state=0),
    }
    return {name: Table(X.astype(np.float32), y.astype(np.int64)) for name, (X, y) in both.items()}


@dataclass(frozen=True, eq=False)
class Model:
    """One model to be trained, with its folder. It is trained on the first half of the rows."""

    data: str
    rows: Table
    setting: tuple[int, int, float]
    seed: int
    folder: Path

    @property
    def member(self) -> NDArray[np.bool_]:
        """Whether each row is used for training, bool, shape (n,)."""
        return np.arange(len(self.rows)) < len(self.rows) // 2

    def write(self) -> list[Any]:
        """Write the rows and return the job for the peer."""
        train, rest = self.rows.take(self.member), self.rows.take(~self.member)
        parts = {"X": train.X, "y": train.y, "X_rest": rest.X, "y_rest": rest.y}
        self.folder.mkdir()
        np.savez(self.folder / "rows.npz", **parts)  # type: ignore[arg-type]
        return [str(self.folder), *self.setting, MODELS]

    def compare(self, peer_result: dict[str, Any]) -> dict[str, Any]:
        """Return the results of both: checks, true positives at 1%, AUC and CPU seconds."""
        (trees, depth, weight), member = self.setting, self.member
        forest = from_xgboost_json(self.folder / "model.json")
        params = TreeParams(trees=trees, max_depth=depth, min_child_weight=weight)
        begun, rng = process_time(), np.random.default_rng(self.seed)
        refs = references(
            self.rows, None, boosted_trainer(params, forest.objective, None), MODELS, rng
        )
        our_scores = lira(forest_logits(forest, self.rows), refs)
        cpu, parts = process_time() - begun, (self.rows.take(member), self.rows.take(~member))
        # A check that fails here corresponds to a risk in sacroml.
        failed_checks = [not c.passed for c in checks(forest, *parts, weight)]
        peer_checks = [peer_result["checks"][name] for name in SAME]
        differ = [n for n, a, b in zip(SAME, failed_checks, peer_checks, strict=True) if a != b]
        return {
            "data": self.data, "trees": trees, "depth": depth, "min_child_weight": weight,
            "seed": self.seed, **_rates("peer", np.array(peer_result["scores"]), member),
            "peer_cpu": peer_result["cpu"], **_rates("ours", our_scores, member), "ours_cpu": cpu,
            "checks_differ": "+".join(differ),
        }  # fmt: skip


def _rates(whose: str, score: NDArray[np.float64], member: NDArray[np.bool_]) -> dict[str, float]:
    """Return the true positive rate and the AUC of membership scores."""
    return {f"{whose}_tpr": at_few(score, member, FEW).tpr, f"{whose}_auc": auc(score, member)}


def run(options: Namespace) -> Iterator[str]:
    """Yield a CSV with a line for each model."""
    models: list[Model] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables().items():
            rows = table.take(np.random.default_rng(options.seed).permutation(len(table)))
            for setting in SETTINGS:
                model_folder = Path(folder) / str(len(models))
                models.append(Model(name, rows, setting, options.seed, model_folder))
        jobs = json.dumps([m.write() for m in models])
        command = [options.python, "-c", _PEER, jobs]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            answers = (json.loads(line) for line in peer.stdout if line.startswith("{"))
            for k, (model, answer) in enumerate(zip(models, answers, strict=False)):
                line = model.compare(answer)
                if not k:
                    yield ",".join(line)
                yield ",".join(
                    f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()
                )


STUDIES = {
    "sacroml_peer": Study(
        "Membership attacks and structural checks compared with sacroml, as CSV.",
        run,
        {
            "--python": {"required": True, "help": "interpreter with sacroml==2.0.1"},
            "--seed": {"type": int, "default": 0, "help": "seed of the rows and the attack"},
        },
    )
}
