"""The audit of a run's claim: the same protocol and defense, on rows that an auditor looks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.guarantee import AtLeast, MutualInformation
from fedtrees.core.holding import Holding, over_clients
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.messages.vertical import visible_nodes
from fedtrees.privacy.measured import bound_of_one_run, bound_of_runs
from fedtrees.privacy.node_information import node_information
from fedtrees.protocols.base import Protocol, Training, train
from fedtrees.protocols.canaries import Canaries
from fedtrees.protocols.views import view_of


def measure(
    protocol: Protocol, defense: Composition, *, runs: int = 1, seed: int = 0
) -> AtLeast | None:
    """Return the lower bound on epsilon that an audit finds, None where none is claimed or looked.

    One client holds the canaries that take part, another the rest. From one run, many canaries are
    told by coin flips; from more, one canary is there in half of them.

    Parameters
    ----------
    protocol : Protocol
    defense : Composition
    runs : int
        1, or an even number.
    seed : int
        Of canaries, coin flips and runs.

    Raises
    ------
    UsageError
        If `runs` is no such number.
    """
    if runs < 1 or (runs > 1 and runs % 2):
        raise UsageError(f"runs={runs}: give 1, or an even number: half of them are without")
    claims = [c for c in (protocol.claim(), *defense.claims()) if getattr(c, "unit", "") != "cuts"]
    canaries: Canaries | None = protocol.canaries()
    if canaries is None or not any(c.budget and c.budget[0] == "epsilon" for c in claims):
        return None
    # What is sealed is seen by nobody: whether it is computed makes no difference but time.
    ideal = (replace(p, mode="ideal") if hasattr(p, "mode") else p for p in defense.parts)  # type: ignore[type-var]
    defense = Composition(tuple(ideal))
    coins = Streams(seed).child("audit")
    delta = sum(float(getattr(claim, "delta", 0.0)) for claim in claims)
    audit = _Audit(protocol, defense, canaries, coins, delta)
    try:
        found = audit.once() if runs == 1 else audit.often(runs // 2)
    except FedtreesError:  # the auditor's table is not for these parameters
        return None
    return AtLeast(float(found), runs=runs, delta=delta)


def largest_node(training: Training, holdings: Mapping[str, Holding]) -> MutualInformation | None:
    """Return the most that a node tells of labels which somebody without labels was shown.

    None where nothing of the kind is claimed. 0 where nothing but roots was shown: trees are then
    those of the active party alone.
    """
    claims = [c for c in training.claims if isinstance(c, MutualInformation)]
    labelled = next((h for h in holdings.values() if h.y is not None), None)
    if not claims or labelled is None or labelled.y is None:
        return None
    y = labelled.y.astype(np.int64)
    totals = np.bincount(y, minlength=len(training.schema.classes))
    worst = 0.0
    for name in (n for n, held in holdings.items() if held.y is None):
        for _, _, rows in visible_nodes(view_of(training, (name,), holdings)):
            counts = np.bincount(y[rows], minlength=len(totals))
            worst = max(worst, float(node_information(counts, totals)))
    if claims[0].unit == "share":
        worst /= float(np.log(totals.sum() / totals[totals > 0].min()))
    return replace(claims[0], xi=round(worst, 6))


class _Audit:
    def __init__(
        self,
        protocol: Protocol,
        defense: Composition,
        canaries: Canaries,
        coins: Streams,
        delta: float,
    ) -> None:
        self.protocol, self.defense, self.canaries = protocol, defense, canaries
        self.coins, self.delta = coins, delta

    def once(self) -> float:
        """Let many rows take part by coin flips."""
        rng = self.coins.rng("rows")
        rows, others = self.canaries.rows(self.canaries.most, rng)
        there = rng.integers(0, 2, len(rows)) == 1
        return bound_of_one_run(self._scores(rows, others, there, 0), there, delta=self.delta)

    def often(self, runs: int) -> float:
        """Let one row take part, or not, in so many runs each."""
        rows, others = self.canaries.rows(1, self.coins.rng("rows"))
        found = [
            [
                float(self._scores(rows, others, np.array([there]), 2 * i + there)[0])
                for i in range(runs)
            ]
            for there in (True, False)
        ]
        return bound_of_runs(np.array(found[0]), np.array(found[1]), delta=self.delta)

    def _scores(self, rows: Table, others: Table, there: np.ndarray, run: int) -> np.ndarray:
        seed = int(self.coins.rng("run", run).integers(1 << 62))
        held = over_clients([rows.take(there), others])
        schema = self.canaries.schema
        training = train(
            self.protocol, held, schema, defense=self.defense, seed=seed, noise_from="seed"
        )
        return self.canaries.scores(training, rows, others)
