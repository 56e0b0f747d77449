"""Baseline that reconstructs one missing row with a neural network.

The reconstructor network (RecoNN) of Balle, Cherubin and Hayes (2022), as Gorgé et al. (2026,
Appendix G) fit it to noisy forests. It requires torch, the extra ``neural``.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.core.schema import Table
from fedtrees.neural.torch_module import torch_module
from fedtrees.privacy.mechanisms import truncated_laplace

#: Number of shadow forests, epochs, batch size and widths of hidden layers, as in the paper.
SHADOWS, EPOCHS, BATCH, HIDDEN = 1600, 5, 32, (1024, 512, 256)
#: Learning rate and weight decay of AdamW, as in the paper.
RATE, DECAY = 1e-3, 1e-4

Reader = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def train_network(forest: NoisyForest, shadow: Table, epsilon: float, seed: int) -> Reader:
    """Train a network on shadow forests.

    A shadow forest has the splits of the attacked one and contains the known rows. After these are
    subtracted, its counts are those of one fresh row with fresh noise.

    Parameters
    ----------
    forest : NoisyForest
        The attacked forest.
    shadow : Table
        Binary rows on which no forest was trained.
    epsilon : float
        Privacy budget of the forest.
    seed : int
        Seed of the training.

    Returns
    -------
    read : callable
        Maps counts without those of known rows to binary rows.

    Raises
    ------
    UsageError
        If torch is not installed.

    Notes
    -----
    Counts below 0 are replaced by 0, as in the paper.
    """
    torch, rng = torch_module(), np.random.default_rng(seed)
    rows = shadow.take(rng.integers(0, len(shadow), SHADOWS))
    leaf, trees = forest.route(forest.variables.encode(rows.X)), len(forest.noisy)
    noisy_counts = truncated_laplace(trees / epsilon, (SHADOWS, *forest.noisy.shape), rng)
    forest_number, tree = np.arange(SHADOWS)[:, None], np.arange(trees)[None, :]
    # Add the one fresh row to the leaf that it reaches in every tree.
    noisy_counts[forest_number, tree, leaf, rows.y[:, None]] += 1

    def inputs(counts: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.maximum(counts, 0).reshape(len(counts), -1).astype(np.float32)

    X, y = torch.from_numpy(inputs(noisy_counts)), torch.from_numpy(rows.X.copy())
    # The global random state of torch is restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = []
        for a, b in pairwise((X.shape[1], *HIDDEN)):
            layers += [torch.nn.Linear(a, b), torch.nn.LayerNorm(b), torch.nn.ReLU()]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN[-1], y.shape[1]))
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    loss = torch.nn.BCEWithLogitsLoss()
    for _ in range(EPOCHS):
        for batch in np.array_split(rng.permutation(SHADOWS), SHADOWS // BATCH):
            optimiser.zero_grad()
            loss(network(X[batch]), y[batch]).backward()
            optimiser.step()

    def read(counts: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            bits = network(torch.from_numpy(inputs(counts))) > 0
        return np.asarray(bits.numpy(), dtype=np.float32)

    return read
