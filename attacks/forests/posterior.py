"""What the counts say of all rows at once: samples of whole tables, and their consensus."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import CLASSES, State, World, advance
from fedtrees.attacks.forests.consensus import ROUNDS, Agreement, consensus, weights
from fedtrees.attacks.forests.labels import Labels
from fedtrees.attacks.forests.noise import NAT, Noise
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.core.errors import DataError, check_positive

#: Chains, moves of each per row before and while samples are taken, and samples in all.
CHAINS, BURN_IN, SAMPLING, SAMPLES = 4, 10_000, 10_000, 120
#: Most moves of a chain before and while samples are taken, of up to `MANY` rows and of more. And
#: of the chains of all questions together, where one is asked of each client.
MOST_MOVES, FEW_MOVES, ALL_MOVES = 2_500_000, 500_000, 1_000_000
#: Costs count so little, times their sharpness, when chains begin.
COOL = 0.2
#: Steps in which chains get from there to the posterior.
STEPS = 50
#: Chains of more than `MANY` rows begin with a table of so many, each row of it repeated, that so
#: many moves per row found for counts scaled down; and the factor of the costs there. From rows
#: drawn uniformly they do not arrive (COMPAS, 2,882 rows, epsilon 0.1: error 0.142, against 0.040).
SMALL, SMALL_MOVES, WARM = 150, 1000, 0.1
#: Moves per row of an annealing, and the first and last factor of the costs.
ANNEALING, FIRST, LAST = 20_000, 0.125, 20.0
#: Rows from which fewer samples are matched, in fewer rounds: matching grows with their square.
MANY, FEW_ROUNDS = 500, 2


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a forest.

    Raises `DataError` if there is no row, or what is known does not fit.
    """

    forest: NoisyForest
    noise: Noise
    n: int  # rows to reconstruct, 1 or more
    # shape (k, G + 1): rows, with their class, that the counts hold besides and that are known
    own: NDArray[np.int16] | None = None
    # mapping of int to int16 array, shape (n,), or None: levels of variables that are known of
    # every row; G stands for the class
    known: dict[int, NDArray[np.int16]] | None = None
    # shape (p, G + 1): rows of the same population, with their class, that are in no count. They
    # take part in the prior alone.
    population: NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or self.n < 1:
            raise DataError(f"n={self.n}: a reconstruction needs at least one row")
        width = len(self.forest.variables) + 1
        for name, rows in (("own", self.own), ("population", self.population)):
            if rows is not None and (rows.ndim != 2 or rows.shape[1] != width):
                raise DataError(
                    f"{name} rows of shape {rows.shape}; give levels and class: (k, {width})"
                )
        for g, values in (self.known or {}).items():
            if not 0 <= g < width or np.shape(values) != (self.n,):
                raise DataError(
                    f"known levels of variable {g} have shape {np.shape(values)}; give one for "
                    f"each of the {self.n} rows, of a variable below {width}"
                )
            if not ((np.asarray(values) >= 0) & (np.asarray(values) < self.sizes[g])).all():
                raise DataError(f"known levels of variable {g} are 0 to {self.sizes[g] - 1}")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Levels of each variable, and the number of classes, int64, shape (G + 1,)."""
        return np.append(self.forest.variables.sizes, self.forest.n_classes)

    def world(self) -> tuple[World, NDArray[np.int64]]:
        """Return what a chain needs to know, and the counts that its table of costs reaches.

        The rows of the population are rows of the chain that cannot move. Their counts are added to
        the noisy ones, so that residuals do not depend on them.
        """
        m = self.n + (0 if self.own is None else len(self.own))
        noisy, cost = self.noise.table(self.forest.noisy, m)
        known_variables = np.array(list(self.known or ()), dtype=int)
        labels = Labels.of(self.noise, self.forest.noisy, m)
        if self.population is not None:
            noisy = noisy + self.forest.counts(self.population[:, :-1], self.population[:, -1])
            m += len(self.population)
        return World.of(self.forest, cost, m, known_variables, labels), noisy

    def small(self) -> Question:
        """Return the question of the victims' counts scaled down to `SMALL` rows."""
        share, noisy = SMALL / self.n, self.forest.noisy
        if self.noise.kind == "labels":  # they stay, and tell of fewer rows each
            return Question(self.forest, Noise("labels", self.noise.scale * share), SMALL)
        if self.own is not None:
            noisy = noisy - self.forest.counts(self.own[:, :-1], self.own[:, -1])
        forest = replace(self.forest, noisy=np.rint(noisy * share).astype(np.int64))
        scale = 0.0 if self.noise.kind == "exact" else self.noise.scale
        noise = Noise("geometric", max(0.5, scale * share), self.noise.draws)
        return Question(forest, noise, SMALL, population=self.population)

    def start(
        self,
        world: World,
        noisy: NDArray[np.int64],
        rng: np.random.Generator,
        begin: NDArray[np.int16] | None = None,
    ) -> State:
        """Return a state of rows drawn uniformly or given, followed by those that do not move."""
        value = np.stack([rng.integers(0, r, self.n) for r in self.sizes], axis=1)
        value = value if begin is None else begin.copy()
        for g, levels in (self.known or {}).items():
            value[:, g] = levels
        fixed = [rows for rows in (self.own, self.population) if rows is not None]
        value = np.concatenate([value, *fixed])
        latent = rng.integers(0, CLASSES, len(value))
        return State.of(self.forest, world, noisy, value, latent)


@dataclass(frozen=True, eq=False)
class Answer:
    """Rows, and how sure they are."""

    value: NDArray[np.int16]  # shape (n, G + 1): levels and class of each row
    probability: NDArray[np.float64]  # shape (n, G + 1, most levels)
    spread: float  # error that the samples expect, as `Agreement` has it; 0 of a single table
    energy: float  # mean cost of the residuals of the samples, nats


def posterior(question: Question, rng: np.random.Generator, work: float = 1.0) -> Answer:
    """Sample tables given the counts, and return the one that is closest to all samples.

    `work`: Moves, as a multiple of the usual; time is proportional to it.

    Notes
    -----
    Chains start from random rows with costs that count little, and cool. Where the noise is small
    each stays in a mode of its own. Replicas that exchange places (parallel tempering) find better
    modes in the same time, but one at a time: the consensus of independent chains errs no more
    (Adult, 100 rows, epsilon 20: 0.066 and 0.068 in two runs, against 0.072).
    """
    check_positive("work", work)
    samples, energy = _samples(question, rng, work)
    rounds, kind = FEW_ROUNDS if question.n > MANY else ROUNDS, None
    if question.known:
        known_levels = np.stack(list(question.known.values()), axis=1)
        kind = np.unique(known_levels, axis=0, return_inverse=True)[1].reshape(-1)
    cost = weights(question.forest.variables)
    agreement: Agreement = consensus(samples, cost, question.sizes, rounds, kind)
    return Answer(agreement.value, agreement.probability, agreement.spread, energy)


def seconds(question: Question, work: float = 1.0) -> float:
    """Return about how many CPU seconds `posterior` takes on one core of 2024."""
    trees, depth = len(question.forest.noisy), question.forest.depth
    move = 1e-7 + 3e-9 * trees * (1 + depth)
    return CHAINS * sum(_moves(per_row, question.n, work) for per_row in (BURN_IN, SAMPLING)) * move


def annealed(question: Question, rng: np.random.Generator, work: float = 1.0) -> Answer:
    """Return a table of about the least cost, whatever rows are likely: the published objective.

    Parameters as of `posterior`.
    """
    check_positive("work", work)
    world, noisy = question.world()
    state, bits = question.start(world, noisy, rng), _bits(rng)
    moves = max(1, int(work * min(ANNEALING * question.n, MOST_MOVES)) // STEPS)
    best, least = state.value[: question.n].copy(), int(state.energy[0])
    for beta in np.geomspace(FIRST, LAST, STEPS).tolist():
        advance(world, state, question.n, beta, moves, bits, prior=False)
        if state.energy[0] < least:
            best, least = state.value[: question.n].copy(), int(state.energy[0])
    one = np.zeros((*best.shape, int(question.sizes.max())))
    np.put_along_axis(one, best[:, :, None].astype(np.intp), 1.0, axis=2)
    return Answer(best, one, 0.0, least / NAT)


def _bits(rng: np.random.Generator) -> NDArray[np.uint64]:
    return rng.integers(0, 1 << 63, 1).astype(np.uint64)


def _moves(per_row: int, n: int, work: float) -> int:
    return int(work * min(per_row * n, MOST_MOVES if n <= MANY else FEW_MOVES))


def share_of_work(question: Question, rows: int) -> float:
    """Return what share of its moves a question gets that is one of several, of so many rows."""
    usual = _moves(max(BURN_IN, SAMPLING), question.n, 1.0)
    return min(1.0, (MOST_MOVES if rows <= MANY else ALL_MOVES) * question.n / rows / usual)


def cut_short(question: Question, work: float) -> bool:
    """Tell whether rows get fewer moves than usual because they are many."""
    return _moves(SAMPLING, question.n, work) < SAMPLING * question.n


def _samples(
    question: Question, rng: np.random.Generator, work: float
) -> tuple[NDArray[np.int16], float]:
    """Return samples, int16 (S, n, G + 1), and their mean energy in nats."""
    n = question.n
    world, noisy = question.world()
    burn_in, sampling = (_moves(per_row, n, work) for per_row in (BURN_IN, SAMPLING))
    cool = _cooling(question)
    n_samples = -(-(SAMPLES if n <= MANY else max(8, SAMPLES * MANY // (2 * n))) // CHAINS)
    samples, energy = [], []
    for _ in range(CHAINS):
        begin = None if n <= MANY else _small_table(question, rng)
        state, bits = question.start(world, noisy, rng, begin), _bits(rng)
        for beta in cool.tolist():
            advance(world, state, n, beta, max(1, burn_in // STEPS), bits)
        for _ in range(n_samples):
            advance(world, state, n, 1.0, max(1, sampling // n_samples), bits)
            samples.append(state.value[:n].copy())
            energy.append(state.energy[0] / NAT)
    return np.stack(samples), float(np.mean(energy))


def _cooling(question: Question) -> NDArray[np.float64]:
    many = question.n > MANY
    return np.geomspace(WARM if many else COOL / max(1.0, question.noise.sharpness), 1.0, STEPS)


def _small_table(question: Question, rng: np.random.Generator) -> NDArray[np.int16]:
    """Return rows that a small table has, over and over, int16, shape (n, G + 1)."""
    small = question.small()
    world, noisy = small.world()
    state, bits = small.start(world, noisy, rng), _bits(rng)
    for beta in _cooling(small).tolist():
        advance(world, state, SMALL, beta, SMALL_MOVES * SMALL // STEPS, bits)
    rows = rng.permutation(-(-question.n // SMALL) * SMALL)[: question.n] % SMALL
    value = state.value[rows]
    for g, levels in (question.known or {}).items():
        value[:, g] = levels
    return value
