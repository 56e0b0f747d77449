"""Runs whose rows are known, and what an adversary of theirs sees."""

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
    """Rows of eight measurements; few people share a path through many trees."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:n, [1, 4, 5, 8, 9, 14, 17, 18]].astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    return Table(X, y[:n])


def made_up(seed, n=150, codes=0):
    """Gaussian columns and, last, `codes` categorical ones."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4 + codes))
    X[:, 4:] = rng.integers(0, 3, (n, codes))
    y = (rng.random(n) < 1 / (1 + np.exp(-X[:, 0] - X[:, 1] * X[:, 2]))).astype(np.int64)
    return Table(X, y)


def misleading(rng):
    """Few rows of few coarse values, some missing, some of them copies; and how many are codes.

    People who share paths, mixtures of whom pass many a test.
    """
    n, plain, codes = (int(rng.integers(*limits)) for limits in ((8, 90), (1, 5), (0, 4)))
    X = rng.normal(size=(n, plain + codes))
    grain = rng.choice([0, 3, 10])
    X = np.round(X * grain / 3) if grain else X
    X[:, plain:] = rng.integers(0, 3, (n, codes))
    X[rng.random(X.shape) < rng.choice([0, 0.1, 0.5])] = np.nan
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * np.nan_to_num(X[:, 0])))).astype(np.int64)
    y[:2] = 0, 1
    copied = rng.integers(0, n, rng.integers(0, n // 2))
    rows = np.concatenate([np.arange(n), copied])
    return Table(X[rows], y[rows]), codes


def schema_of(table, codes=0):
    d = table.X.shape[1]
    plain = [Feature(f"x{k}") for k in range(d - codes)]
    coded = [Feature(f"c{k}", "categorical", categories=("a", "b", "c")) for k in range(codes)]
    return Schema((*plain, *coded), "y")


class Run:
    """A finished run over clients that each hold every k-th row, or over given ones."""

    def __init__(self, protocol, table, clients=3, principals=None, schema=None, parts=()):
        if isinstance(clients, int):
            clients = [table.take(np.arange(k, len(table), clients)) for k in range(clients)]
        self.protocol, self.clients, self.schema = protocol, clients, schema or schema_of(table)
        defense = Composition(tuple(parts))
        self.training = train(protocol, over_clients(clients), self.schema, defense=defense, seed=1)
        self.principals = principals or (client_names(len(clients))[-1],)
        self.view = view_of(self.training, self.principals, over_clients(self.clients))

    def with_clients(self, clients):
        """Run again over other clients, undefended."""
        return Run(self.protocol, clients[0], clients, self.principals, self.schema)

    @property
    def cuts(self):
        m = next(m for _, m in self.view.messages(CutPoints))
        return Cuts(m.values, m.offsets, m.minimum)

    @property
    def truth(self):
        names = client_names(len(self.clients))
        return {n: t for n, t in zip(names, self.clients, strict=True) if n not in self.principals}

    def bins(self, table):
        return to_bins(self.cuts, table.X)

    def keys(self, table):
        return [tuple(r) for r in np.column_stack([self.bins(table), table.y]).tolist()]

    def counts(self):
        return Counter(k for t in self.truth.values() for k in self.keys(t))

    def attack(self, **options):
        """Run the attack. Where it is certain of no row, the guess has a table without rows."""
        guess = HistogramPeeling(**options).run(self.view, np.random.default_rng(0))
        if guess.reason == Reason("no-certain-rows"):
            none = Records(Table.empty(self.schema), np.zeros(0), ())
            return replace(guess, claims=(none,), reason=None)
        return guess

    def wrong(self, guess):
        """Return which returned rows are no victim's, or more than there are of them, (m,)."""
        seen, truth = Counter(), self.counts()
        out = []
        for key in self.keys(guessed.rows(guess)):
            seen[key] += 1
            out.append(seen[key] > truth[key])
        return np.array(out, dtype=bool)


def misleading_run(seed, protocol=NVFlareHist, **options):
    """A run of one to four clients over a misleading table; a client or the server attacks."""
    rng = np.random.default_rng(seed)
    table, codes = misleading(rng)
    shape = {"trees": int(rng.integers(1, 16)), "max_depth": int(rng.integers(1, 6))}
    clients = int(rng.integers(1, 5))
    who = SERVER if clients == 1 or rng.random() < 0.5 else None
    made = protocol(**shape, max_bin=int(rng.choice([4, 16, 64])), **options)
    return Run(made, table, clients, who, schema_of(table, codes))
