"""The audit of claims of epsilon: the same mechanism, on rows that an auditor looks for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.guarantee import AtLeast, Guarantee, MutualInformation
from fedtrees.core.local_data import LocalData
from fedtrees.core.streams import Streams
from fedtrees.privacy.measured import NoiseFound, bound_of_guesses, most_of_guesses, noise_found
from fedtrees.privacy.node_information import node_information
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.canaries import Canaries
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of


@dataclass(frozen=True)
class Audited:
    """What an audit found, and of what."""

    protocol: Protocol  # with the parameters that the auditor chose
    # claimed, spent: of the last training
    claimed: tuple[Guarantee, ...]
    spent: tuple[Guarantee, ...]
    found: AtLeast
    noise: NoiseFound | None  # None where no sums can be compared


def measure(protocol: Protocol, defense: Composition, *, seed: int = 0) -> AtLeast | None:
    """Return the lower bound on epsilon that one training shows, None where nobody can look.

    That is where no epsilon is claimed, or of cut points or labels alone, or of rows other than
    the auditor's. One client holds the canaries that take part by coin flips, another the rest.

    `protocol`: With the parameters of the run.
    `seed`: Of canaries, coin flips and training.
    """
    units = {getattr(c, "unit", "") for c in _epsilons(protocol, defense)}
    canaries: Canaries | None = protocol.canaries()
    if canaries is None or units <= {"cuts", ""}:
        return None
    try:
        return _audited(protocol, defense, canaries, 1, seed).found
    except FedtreesError:  # the auditor's table is not for these parameters
        return None


def audit(
    protocol: Protocol, defense: Composition, *, runs: int | None = None, seed: int = 0
) -> Audited:
    """Look for the largest epsilon that can be shown: the auditor chooses rows and parameters.

    Raises `UsageError` if no epsilon is claimed, if nobody knows how to look, or if `runs` is below
    1.

    `runs`: How many trainings; None: what a minute is more than enough for.
    `seed`: Of canaries, coin flips and trainings.
    """
    if runs is not None and runs < 1:
        raise UsageError(f"runs={runs}: give 1 or more")
    if not _epsilons(protocol, defense):
        raise UsageError("no epsilon is claimed: there is nothing to measure")
    chosen, canaries = protocol.worst_case(defense) or (protocol, protocol.canaries())
    if canaries is None:
        raise UsageError(
            f"no rows are known that tell most of {protocol.name!r}: give it a worst_case"
        )
    return _audited(chosen, defense, canaries, runs or canaries.runs, seed)


def largest_node(
    training: Training, local_data: Mapping[str, LocalData]
) -> MutualInformation | None:
    """Return the most that a node tells of labels which somebody without labels was shown.

    None where nothing of the kind is claimed. 0 where nothing but roots was shown: trees are then
    those of the active party alone.
    """
    claims = [c for c in training.claims if isinstance(c, MutualInformation)]
    labelled = next((h for h in local_data.values() if h.y is not None), None)
    if not claims or labelled is None or labelled.y is None:
        return None
    y = labelled.y.astype(np.int64)
    totals = np.bincount(y, minlength=len(training.schema.classes))
    worst = 0.0
    for name in (n for n, held in local_data.items() if held.y is None):
        for rows in training.protocol.nodes_shown(view_of(training, (name,), local_data)):
            counts = np.bincount(y[rows], minlength=len(totals))
            worst = max(worst, float(node_information(counts, totals)))
    if claims[0].unit == "share":
        worst /= float(np.log(totals.sum() / totals[totals > 0].min()))
    return replace(claims[0], xi=round(worst, 6))


def _epsilons(protocol: Protocol, defense: Composition) -> list[Guarantee]:
    """Return the claims of an epsilon."""
    claims = [protocol.claim(), *defense.claims()]
    return [c for c in claims if c.budget and c.budget[0] == "epsilon"]


def _audited(
    protocol: Protocol, defense: Composition, canaries: Canaries, runs: int, seed: int
) -> Audited:
    """Train so many times, with other coin flips each, and guess them all."""
    # What is sealed is seen by nobody: whether it is computed makes no difference but time.
    ideal = (replace(p, mode="ideal") if hasattr(p, "mode") else p for p in defense.parts)  # type: ignore[type-var]
    defense, randomness = Composition(tuple(ideal)), Streams(seed).child("audit")
    scores, there, off = [], [], []
    for run in range(runs):
        rng = randomness.rng("rows", run)
        rows, others = canaries.rows(canaries.most, rng)
        there.append(rng.integers(0, 2, len(rows)) == 1)
        training = train(
            protocol, canaries.held(rows, there[-1], others), canaries.schema, defense=defense,
            seed=int(randomness.rng("run", run).integers(1 << 62)), noise_from="seed",
        )  # fmt: skip
        scores.append(canaries.scores(training, rows, others))
        off.append(canaries.residuals(training, rows, there[-1], others))
    claims = _epsilons(protocol, defense)
    delta = sum(float(getattr(claim, "delta", 0.0)) for claim in claims)
    units = [u for c in claims if (u := getattr(c, "unit", "record")) != "cuts"]
    known = {"delta": delta, "claimed": max((float(c.epsilon) for c in claims), default=1.0)}  # type: ignore[attr-defined]
    found = AtLeast(
        bound_of_guesses(np.concatenate(scores), np.concatenate(there), **known),
        unit="record" if units else "cuts",
        runs=runs,
        delta=delta,
        most=round(most_of_guesses(sum(map(len, scores)), **known), 3),
    )
    return Audited(protocol, tuple(training.claims), tuple(training.spent), found,
                   noise_found(np.concatenate(off)))  # fmt: skip
