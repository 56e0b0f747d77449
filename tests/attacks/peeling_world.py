"""Runs whose training rows are known, with the view of an adversary in each run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import guessed
import numpy as np
from sklearn.datasets import load_breast_cancer

from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.peeling.bin_values import to_bins
from fedtrees.core.claims import Records
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import over_clients
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.horizontal import CutPoints
from fedtrees.protocols.base import client_names
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts

SERVER = ("server",)
SHARED = NVFlareHist(trees=25, max_depth=4, max_bin=32)


def patients(n=240, missing=0.0):
    """Return rows of eight measurements. Few patients share a path through many trees."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:n, [1, 4, 5, 8, 9, 14, 17, 18]].astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    return Table(X, y[:n])


def gaussian_table(seed, n=150, codes=0):
    """Return a table of Gaussian columns, the last `codes` columns of which are categorical."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4 + codes))
    X[:, 4:] = rng.integers(0, 3, (n, codes))
    y = (rng.random(n) < 1 / (1 + np.exp(-X[:, 0] - X[:, 1] * X[:, 2]))).astype(np.int64)
    return Table(X, y)


def misleading_table(rng):
    """Return a table that provokes wrong claims, and its number of categorical columns.

    It has few rows of few coarse values. Some values are missing, and some rows are copies. Several
    rows share paths through the trees, so a mixture of different rows passes many consistency
    tests.
    """
    n, plain, codes = (int(rng.integers(*bounds)) for bounds in ((8, 90), (1, 5), (0, 4)))
    X = rng.normal(size=(n, plain + codes))
    grain = rng.choice([0, 3, 10])
    X = np.round(X * grain / 3) if grain else X
    X[:, plain:] = rng.integers(0, 3, (n, codes))
    X[rng.random(X.shape) < rng.choice([0, 0.1, 0.5])] = np.nan
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * np.nan_to_num(X[:, 0])))).astype(np.int64)
    y[:2] = 0, 1
    copies = rng.integers(0, n, rng.integers(0, n // 2))
    rows = np.concatenate([np.arange(n), copies])
    return Table(X[rows], y[rows]), codes


def schema_of(table, codes=0):
    d = table.X.shape[1]
    plain = [Feature(f"x{k}") for k in range(d - codes)]
    coded = [Feature(f"c{k}", "categorical", categories=("a", "b", "c")) for k in range(codes)]
    return Schema((*plain, *coded), "y")


class Run:
    """A finished run. `clients` is a number (client k gets every k-th row) or a list of tables."""

    def __init__(self, protocol, table, clients=3, principals=None, schema=None, parts=()):
        if isinstance(clients, int):
            clients = [table.take(np.arange(k, len(table), clients)) for k in range(clients)]
        self.protocol, self.clients, self.schema = protocol, clients, schema or schema_of(table)
        defense = Composition(tuple(parts))
        self.training = train(protocol, over_clients(clients), self.schema, defense=defense, seed=1)
        self.principals = principals or (client_names(len(clients))[-1],)
        self.view = view_of(self.training, self.principals, over_clients(self.clients))

    def with_clients(self, clients):
        """Repeat the run with other clients and without a defense."""
        return Run(self.protocol, clients[0], clients, self.principals, self.schema)

    @property
    def cuts(self):
        message = next(message for _, message in self.view.messages(CutPoints))
        return Cuts(message.values, message.offsets, message.minimum)

    @property
    def truth(self):
        names = client_names(len(self.clients))
        return {
            name: table
            for name, table in zip(names, self.clients, strict=True)
            if name not in self.principals
        }

    def bins(self, table):
        return to_bins(self.cuts, table.X)

    def keys(self, table):
        return [tuple(row) for row in np.column_stack([self.bins(table), table.y]).tolist()]

    def counts(self):
        return Counter(key for table in self.truth.values() for key in self.keys(table))

    def attack(self, **options):
        """Run the attack. If it is certain of no row, replace its refusal by a table without
        rows.
        """
        guess = HistogramPeeling(**options).run(self.view, np.random.default_rng(0))
        if guess.reason == Reason("no-certain-rows"):
            no_records = Records(Table.empty(self.schema), np.zeros(0), ())
            return replace(guess, claims=(no_records,), reason=None)
        return guess

    def wrong(self, guess):
        """Return a mask, shape (m,), of the guessed rows that no victim has, or that are guessed
        more often than they occur.
        """
        guessed_counts, true_counts = Counter(), self.counts()
        is_wrong = []
        for key in self.keys(guessed.rows(guess)):
            guessed_counts[key] += 1
            is_wrong.append(guessed_counts[key] > true_counts[key])
        return np.array(is_wrong, dtype=bool)


def misleading_run(seed, protocol=NVFlareHist, **options):
    """Return a run of one to four clients over a misleading table. A client or the server
    attacks.
    """
    rng = np.random.default_rng(seed)
    table, codes = misleading_table(rng)
    shape = {"trees": int(rng.integers(1, 16)), "max_depth": int(rng.integers(1, 6))}
    clients = int(rng.integers(1, 5))
    principals = SERVER if clients == 1 or rng.random() < 0.5 else None
    drawn_protocol = protocol(**shape, max_bin=int(rng.choice([4, 16, 64])), **options)
    return Run(drawn_protocol, table, clients, principals, schema_of(table, codes))
