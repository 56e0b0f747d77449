"""Audit claims of epsilon: train on rows chosen by an auditor, and guess which of them took part.

The auditor inserts canaries, each with probability 1/2, and guesses from the model whether each one
was included. The number of correct guesses gives a lower bound on epsilon
(`fedtrees.privacy_audit.bounds.bound_of_counts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.guarantee import AtLeast, Guarantee, MutualInformation
from fedtrees.core.local_data import LocalData
from fedtrees.core.streams import Streams
from fedtrees.privacy.accounting import node_information
from fedtrees.privacy_audit.bounds import (
    NoiseFound,
    bound_of_counts,
    count_guesses,
    most_of_guesses,
    noise_found,
)
from fedtrees.privacy_audit.canaries import Canaries, choose_audit_setting, create_canaries
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of


@dataclass(frozen=True)
class Audited:
    """Result of an audit.

    Attributes
    ----------
    protocol : Protocol
        The protocol with the parameters that the auditor chose.
    claimed, spent : tuple of Guarantee
        Guarantees of the last training.
    measured : AtLeast
        The measured lower bound on epsilon.
    noise : NoiseFound or None
        Size of the noise in the sums, None if no sums can be compared.
    """

    protocol: Protocol
    claimed: tuple[Guarantee, ...]
    spent: tuple[Guarantee, ...]
    measured: AtLeast
    noise: NoiseFound | None


def measure(protocol: Protocol, defense: Composition, *, seed: int = 0) -> AtLeast | None:
    """Return the lower bound on epsilon that one training shows, or None.

    By default, client 0 has the included canaries, and client 1 the remaining rows. The result is
    None if the protocol has no canaries, if the claimed epsilons do not refer to records or
    parties (but, for example, to cut points only), or if the canaries do not fit the parameters of
    the run.

    Parameters
    ----------
    protocol : Protocol
        The protocol with the parameters of the run.
    defense : Composition
        The defense.
    seed : int
        Seed of the canaries, the coin flips and the training.
    """
    units = {getattr(c, "unit", "") for c in _epsilons(protocol, defense)}
    canaries = create_canaries(protocol)
    if canaries is None or units <= {"cuts", ""}:
        return None
    try:
        return _run_audit(protocol, defense, canaries, 1, seed).measured
    # The table of the auditor does not fit these parameters.
    except FedtreesError:
        return None


def audit(
    protocol: Protocol,
    defense: Composition,
    *,
    runs: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Audited:
    """Search for the largest epsilon that can be shown.

    The auditor chooses rows and parameters.

    Parameters
    ----------
    protocol : Protocol
        The protocol. `choose_audit_setting` may change its parameters.
    defense : Composition
        The defense.
    runs : int or None
        Number of trainings. None: the number of the canaries, which takes less than a minute.
    seed : int
        Seed of the canaries, the coin flips and the trainings.
    confidence : float
        Probability that the bound is correct.

    Raises
    ------
    UsageError
        If no epsilon is claimed, if the protocol has no canaries, or if `runs` is below 1.
    """
    if runs is not None and runs < 1:
        raise UsageError(f"runs={runs}: give 1 or more")
    if not _epsilons(protocol, defense):
        raise UsageError("no epsilon is claimed: there is nothing to measure")
    chosen, canaries = choose_audit_setting(protocol, defense)
    if canaries is None:
        raise UsageError(
            f"no canaries are known for {protocol.name!r}: register some for its class by "
            "fedtrees.privacy_audit.canaries.register_canaries"
        )
    return _run_audit(chosen, defense, canaries, runs or canaries.runs, seed, confidence)


def largest_node(
    training: Training, local_data: Mapping[str, LocalData]
) -> MutualInformation | None:
    """Return the largest mutual information between a shown node and the labels.

    A node is a set of rows that a party without labels received. The result is None if no such
    guarantee is claimed. It is 0 if only roots were shown, because the trees below the root then
    belong to the party with labels only.

    Parameters
    ----------
    training : Training
        The finished training.
    local_data : mapping of str to LocalData
        Data of every party, which contain the labels.
    """
    claims = [c for c in training.claims if isinstance(c, MutualInformation)]
    labelled = next((h for h in local_data.values() if h.y is not None), None)
    if not claims or labelled is None or labelled.y is None:
        return None
    y = labelled.y.astype(np.int64)
    totals = np.bincount(y, minlength=len(training.schema.classes))
    worst = 0.0
    for name in (n for n, part in local_data.items() if part.y is None):
        for rows in training.protocol.visible_node_rows(view_of(training, (name,), local_data)):
            counts = np.bincount(y[rows], minlength=len(totals))
            worst = max(worst, float(node_information(counts, totals)))
    if claims[0].unit == "share":
        worst /= float(np.log(totals.sum() / totals[totals > 0].min()))
    return replace(claims[0], xi=round(worst, 6))


def _epsilons(protocol: Protocol, defense: Composition) -> list[Guarantee]:
    """Return the guarantees of the protocol and the defense that claim an epsilon."""
    claims = [protocol.claim(), *defense.claims()]
    return [c for c in claims if c.budget and c.budget[0] == "epsilon"]


def _run_audit(
    protocol: Protocol,
    defense: Composition,
    canaries: Canaries,
    runs: int,
    seed: int,
    confidence: float = 0.95,
) -> Audited:
    """Run several trainings with different coin flips, and guess all of them."""
    # The auditor sees only the model. The ideal functionality gives the same model as cryptography,
    # and takes less time.
    ideal = (replace(p, mode="ideal") if hasattr(p, "mode") else p for p in defense.parts)  # type: ignore[type-var]
    defense, randomness = Composition(tuple(ideal)), Streams(seed).child("audit")
    scores, took_part, residuals = [], [], []
    for run in range(runs):
        rng = randomness.rng("rows", run)
        rows, rest = canaries.rows(canaries.max_canaries, rng)
        took_part.append(rng.integers(0, 2, len(rows)) == 1)
        training = train(
            protocol, canaries.distribute(rows, took_part[-1], rest), canaries.schema,
            defense=defense, seed=int(randomness.rng("run", run).integers(1 << 62)),
            noise_from="seed",
        )  # fmt: skip
        scores.append(canaries.scores(training, rows, rest))
        residuals.append(canaries.residuals(training, rows, took_part[-1], rest))
    claims = _epsilons(protocol, defense)
    # The deltas of composed mechanisms add up.
    delta = sum(float(getattr(claim, "delta", 0.0)) for claim in claims)
    units = [u for c in claims if (u := getattr(c, "unit", "record")) != "cuts"]
    epsilons = (float(getattr(claim, "epsilon")) for claim in claims)  # noqa: B009
    options = {"delta": delta, "claimed": max(epsilons, default=1.0)}
    counts = count_guesses(np.concatenate(scores), np.concatenate(took_part), **options)
    n_canaries = sum(map(len, scores))
    measured = AtLeast(
        bound_of_counts(counts, n_canaries, confidence=confidence, delta=delta),
        unit="record" if units else "cuts",
        runs=runs,
        delta=delta,
        most=round(most_of_guesses(n_canaries, **options), 3),
        canaries=n_canaries,
        guesses=tuple(f"{correct}of{guesses}" for correct, guesses in counts),
    )
    return Audited(protocol, tuple(training.claims), tuple(training.spent), measured,
                   noise_found(np.concatenate(residuals)))  # fmt: skip
