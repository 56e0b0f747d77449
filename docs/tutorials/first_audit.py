"""What does a model file of three hospitals give away, and what is left after scrubbing it?

Run it: python docs/tutorials/first_audit.py
"""

# %% Three hospitals bag boosted trees, as with Flower. The model is a file that XGBoost loads.
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedtrees import FederatedGBDTClassifier
from fedtrees.audit import Known, audit, read_model
from fedtrees.audit.scrub import scrub

X, y = load_breast_cancer(return_X_y=True)
folder = TemporaryDirectory()
path = Path(folder.name) / "model.json"
model = FederatedGBDTClassifier(
    n_clients=3, protocol="flower-bagging", n_estimators=5, max_depth=3, random_state=2
)
model.fit(X, y).save_model(path)

# %% The audit sees that file and nothing else.
found = audit(read_model(path))
print(found.rows.n, "rows,", found.rows.n_pos, "of them positive:", found.sources.how)

# %% Rows and labels of the leaves of every hospital's first tree ...
first = [tree for tree in found.trees if tree.base_score is not None]
for tree in first:
    print(f"{tree.source}: rows {tree.n}, positives {tree.n_pos}")

# %% ... which add up to the truth, though no hospital ever said how many patients it has.
right = (found.rows.n, found.rows.n_pos) == (len(y), int(y.sum()))
print("as many as there are:", right)

# %% A copy without the statistics predicts the same ...
copy = path.with_name("clean.json")
done = scrub(read_model(path), copy, rows=X.astype(np.float32))
print("predictions unchanged, bit for bit:", done.same)

# %% ... tells a stranger nothing for certain, and whoever knows eta and lambda the same as before.
# (With other rows it may be less: where two tables explain the values, neither is told.)
stranger = audit(read_model(copy))
insider = audit(read_model(copy), Known(learning_rate=0.3, reg_lambda=1.0))
for who, seen in (("stranger", stranger), ("insider", insider)):
    print(f"{who}: {seen.summary.counted} leaves with a certain number of rows")
folder.cleanup()
