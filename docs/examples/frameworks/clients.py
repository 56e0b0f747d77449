"""The training table of the scripts in this folder, and its rows per client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

TARGET = "benign"
SHARES = (0.25, 0.45, 0.3)  # clients usually have different sizes


def table() -> pd.DataFrame:
    """Return the breast cancer table (569 x 30) with the label and the client (0 to 2) of rows."""
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
    """Write the training table (`train.csv`) and the rows of each client (`client-1.csv`, ...)."""
    rows = table()
    rows.drop(columns="client").to_csv(folder / "train.csv", index=False)
    for client, local_rows in rows.groupby("client"):
        local_rows.drop(columns="client").to_csv(folder / f"client-{client + 1}.csv", index=False)
