"""The table that the frameworks of this folder train on, and its rows per client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

TARGET = "benign"
SHARES = (0.25, 0.45, 0.3)  # of unequal size, as clients are


def table() -> pd.DataFrame:
    """Return breast cancer: 569 rows, 30 columns, the label, and `client`: 0, 1 or 2."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    order = np.random.default_rng(7).permutation(len(X))
    client = np.empty(len(X), dtype=int)
    for c, rows in enumerate(np.split(order, (np.cumsum(SHARES)[:-1] * len(X)).astype(int))):
        client[rows] = c
    return X.assign(**{TARGET: y, "client": client})


def rows_of(client: int) -> tuple[pd.DataFrame, pd.Series]:
    """Return the columns and the labels of one client."""
    rows = table().query("client == @client")
    return rows.drop(columns=[TARGET, "client"]), rows[TARGET]


def write_rows(folder: Path) -> None:
    """Write the whole training table, `train.csv`, and what each client holds, `client-1.csv`..."""
    rows = table()
    rows.drop(columns="client").to_csv(folder / "train.csv", index=False)
    for client, own in rows.groupby("client"):
        own.drop(columns="client").to_csv(folder / f"client-{client + 1}.csv", index=False)
