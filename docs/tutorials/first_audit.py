"""Which patient data does a model file of three hospitals reveal, before and after scrubbing it?

Run it: python docs/tutorials/first_audit.py
"""

# %% Three hospitals train boosted trees by bagging, as with Flower. XGBoost loads the model file.
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedtrees import FederatedGBDTClassifier
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.scrub import scrub

X, y = load_breast_cancer(return_X_y=True)
folder = TemporaryDirectory()
path = Path(folder.name) / "model.json"
model = FederatedGBDTClassifier(
    n_clients=3, protocol="flower-bagging", n_estimators=5, max_depth=3, random_state=2
)
model.fit(X, y).save_model(path)

# %% The audit receives this file and nothing else.
exposure = audit(read_model(path))
print(exposure.rows.n, "rows,", exposure.rows.n_pos, "of them positive:", exposure.sources.how)

# %% It computes the number of rows and of positive labels in the first tree of every hospital.
first = [tree for tree in exposure.trees if tree.base_score is not None]
for tree in first:
    print(f"{tree.source}: rows {tree.n}, positives {tree.n_pos}")

# %% The numbers add up to the true table, although no hospital sent its number of patients.
right = (exposure.rows.n, exposure.rows.n_pos) == (len(y), int(y.sum()))
print("as many as there are:", right)

# %% A copy without the statistics makes the same predictions.
copy = path.with_name("clean.json")
done = scrub(read_model(path), copy, rows=X.astype(np.float32))
print("predictions unchanged, bit for bit:", done.same)

# %% A recipient of the copy who does not know eta and lambda can be certain of no leaf. A recipient
# who knows them learns as much as before. (With other rows it can be less: if two tables explain
# the leaf values, the audit reports neither of them.)
stranger = audit(read_model(copy))
insider = audit(read_model(copy), Known(learning_rate=0.3, reg_lambda=1.0))
for who, seen in (("stranger", stranger), ("insider", insider)):
    print(f"{who}: {seen.summary.counted} leaves with a certain number of rows")
folder.cleanup()
