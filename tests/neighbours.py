"""What one row moves of all that a run opens, worked out on two tables that differ by it.

Both are trained with the same randomness. Whatever the first run released with noise is put in
place of what the second would release, so that both go on alike; the chance of it under either is
known exactly. Anything else that somebody may read and that differs has no noise at all.
"""

import math
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from unittest.mock import patch

import numpy as np
from present import CRYPTO
from scipy.optimize import brentq
from scipy.stats import nbinom, norm

from fedtrees.core.aggregation import IdealOpening, agreed, summands
from fedtrees.core.channel import Share
from fedtrees.core.codec import encode
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import closed
from fedtrees.core.transcript import Transcript
from fedtrees.defenses import cut_points, label_noise
from fedtrees.defenses.cut_points import PrivateQuantileCuts
from fedtrees.messages.aggregation import MaskSurvivors, OpenedSum
from fedtrees.messages.horizontal import CUT_MESSAGES, GridCounts
from fedtrees.privacy.noise import Gaussian, Noise, TruncatedLaplace
from fedtrees.privacy.randomised_response import ranked
from fedtrees.protocols.compatibility import fit
from fedtrees.protocols.forests import dp_forest
from fedtrees.protocols.horizontal import dp_gbdt
from fedtrees.protocols.training import train

OPENINGS: tuple[type, ...] = (IdealOpening,)
if CRYPTO:
    from fedtrees.defenses.masking import UnmaskedSums
    from fedtrees.defenses.paillier import Adding

    OPENINGS = (IdealOpening, UnmaskedSums, Adding)


@dataclass
class Tape:
    """What the first run released; the second reads it and adds up what it costs.

    `pure`: Log of the largest ratio of chances, in nats, by what is released. `gaussian`: Squared
    distances over variances, in sum. `shares`: Scale of the last shares of noise, by mechanism, and
    for how many parties they were drawn.
    """

    kept: list = field(default_factory=list)
    at: int | None = None
    pure: Counter = field(default_factory=Counter)
    gaussian: float = 0.0
    shares: list = field(default_factory=list)

    def release(self, x, draw, cost):
        """Return a release of x: drawn in the first run, in the second that of the first."""
        if self.at is None:
            self.kept.append((x, draw()))
            return self.kept[-1][1]
        before, y = self.kept[self.at] if self.at < len(self.kept) else (None, None)
        self.at += 1
        if y is None or np.shape(before) != np.shape(x):  # how much is released depends on the row
            self.pure["bare"] = math.inf
            return draw()
        cost(np.asarray(before, dtype=np.float64), np.asarray(x, dtype=np.float64))
        return y

    def noisy(self, law, x, rng, send):
        """Stand in for `Noise.send`."""

        def cost(before, after):
            steps = np.abs(before - after) / np.asarray(law.scale)
            if isinstance(law, Gaussian):
                self.gaussian += float((steps**2).sum())
                return
            cut_off = math.log(2) * np.count_nonzero(steps) * isinstance(law, TruncatedLaplace)
            self.pure["noise"] += float(steps.sum()) + cut_off

        return self.release(np.array(x), lambda: send(law, x, rng), cost)

    def share(self, mechanism):
        """Stand in for a share of noise: none is added until all are summed."""

        def none(scale, shape, rng, parties):
            self.shares = [*self.shares[-1:], (mechanism, scale, parties)]
            return np.zeros(shape, dtype=np.int64)

        return none

    def opened(self, total, left):
        """Add to a sum the noise that so many parties share."""
        (name, x), *others = summands(total).items()
        mechanism, _, parties = self.shares[-1]
        share = left / parties
        if mechanism == "laplace":
            scale = self.shares[-1][1]
            noise = Shared(scale, share)
            what = "cuts" if isinstance(total, GridCounts) else "shares"

            def cost(a, b):
                self.pure[what] += noise.cost(a, b)

        else:
            scale = np.array([s for _, s, _ in self.shares[-2:]]) * math.sqrt(share)

            def cost(a, b):
                self.gaussian += float((((a - b) / scale) ** 2).sum())

            noise = Shared(float(scale.max()), 1.0)
        rng = np.random.default_rng(len(self.kept))
        y = self.release(np.array(x), lambda: x + noise.draw(x.shape, rng), cost)
        return replace(total, **{name: y}, **dict(others))

    def quantiles(self, part, message, ctx, send):
        """Stand in for quantiles; of their cost that of the number of rows alone is counted."""
        each = part.epsilon / (ctx.held.X.shape[1] + 1)

        def cost(a, b):
            self.pure["cuts"] += float(np.abs(a - b).sum()) * each

        return self.release(len(ctx.held), lambda: send(part, message, ctx), cost)

    def answers(self, y, prior, odds, rng, send, published):
        """Stand in for randomised response."""

        def cost(before, after):
            for row in np.flatnonzero(before != after):
                chances = matrix(prior[row].tolist(), odds, published=published)
                a, b = chances[int(before[row])], chances[int(after[row])]
                self.pure["labels"] += max(map(_ratio, a, b))

        return self.release(y.copy(), lambda: send(y, prior, odds, rng, published=published), cost)

    def majority(self, counts, epsilon, rng, send):
        """Stand in for permute-and-flip between two classes."""

        def cost(before, after):
            for a, b in zip(before.reshape(-1, 2), after.reshape(-1, 2), strict=True):
                self.pure["majority"] += max(map(_ratio, _flip(a, epsilon), _flip(b, epsilon)))

        return self.release(counts.copy(), lambda: send(counts, epsilon, rng), cost)


def matrix(prior, odds, *, published=False):
    """Return the probabilities of `respond`: of every true label (row) and answer (column)."""
    K = len(prior)
    order, among = ranked(np.array([prior], dtype=np.float64), odds)
    k = int(among[0])
    top = order[0, :k].tolist()
    found = [[Fraction(0)] * K for _ in range(K)]
    for true in range(K):
        if true in top:
            for answer in top:
                found[true][answer] = (odds if answer == true else 1) / (odds + k - 1)
        else:
            outside = range(K) if published else top
            for answer in outside:
                found[true][answer] = Fraction(1, len(outside))
    return found


def _ratio(p, q):
    return 0.0 if p == q else math.inf if not p or not q else abs(math.log(p / q))


def _flip(counts, epsilon):
    behind = 0.5 * math.exp(-epsilon * abs(counts[0] - counts[1]))
    return (1 - behind, behind) if counts[0] >= counts[1] else (behind, 1 - behind)


@dataclass(frozen=True)
class Shared:
    """The sum of discrete Laplace noise of which each party adds a share, if some are left."""

    scale: float
    share: float

    @property
    def _law(self):
        return self.share, -math.expm1(-1 / self.scale)

    def draw(self, shape, rng):
        return rng.negative_binomial(*self._law, shape) - rng.negative_binomial(*self._law, shape)

    def cost(self, before, after):
        """Return the log of the largest ratio of chances, over all numbers that differ."""
        steps = np.abs(before - after).astype(np.int64)
        if not steps.any():
            return 0.0
        n = int(40 * self.scale) + 64
        one = np.exp(nbinom.logpmf(np.arange(n), *self._law))
        chance = np.log(np.correlate(one, one, "full")[n // 2 : -(n // 2)])
        worst = {s: np.abs(chance[s:] - chance[:-s]).max() for s in {*steps[steps > 0].tolist()}}
        return float(sum(worst[s] for s in steps[steps > 0].tolist()))


@contextmanager
def replayed(tape):
    """Let all noise of a run pass through a tape."""
    sent, kinds = Noise.send, OPENINGS
    respond, flip = label_noise.respond, dp_forest.permute_and_flip
    quantiles, summed = PrivateQuantileCuts.outgoing, {k: k.opened for k in kinds}
    recorded, bare = Transcript.record, []

    def record(self, sender, receivers, message, why):
        own = receivers == (sender,) or isinstance(message, OpenedSum)
        if not (bare and own):  # a sum without its noise, which is opened below
            recorded(self, sender, receivers, message, why)

    def opened(kind):
        def method(self, waiting, wire, why):
            left = [len(waiting)]

            def ask(to, message, *given, **named):
                if isinstance(message, MaskSurvivors):
                    left.append(len(message.parties.split(",")))
                return wire.ask(to, message, *given, **named)

            shared = type(agreed(waiting.values())) in tape.kinds
            bare.extend([True] * shared)
            total = summed[kind](self, waiting, replace(wire, ask=ask), why)
            bare.clear()
            return tape.opened(total, left[-1]) if shared else total

        return method

    swaps = [
        (Noise, "send", lambda law, x, rng=None: tape.noisy(law, x, rng, sent)),
        (cut_points, "discrete_laplace_share", tape.share("laplace")),
        (dp_forest, "discrete_laplace_share", tape.share("laplace")),
        (dp_gbdt, "discrete_gaussian_share", tape.share("gaussian")),
        (
            label_noise,
            "respond",
            lambda y, prior, odds, rng, published=False: tape.answers(
                y, prior, odds, rng, respond, published
            ),
        ),
        (dp_forest, "permute_and_flip", lambda c, e, rng: tape.majority(c, e, rng, flip)),
        (
            PrivateQuantileCuts,
            "outgoing",
            lambda part, message, ctx: tape.quantiles(part, message, ctx, quantiles),
        ),
        *((kind, "opened", opened(kind)) for kind in kinds),
        (Transcript, "record", record),
    ]
    with ExitStack() as stack:
        for where, name, made in swaps:
            stack.enter_context(patch.object(where, name, made))
        yield


@dataclass(frozen=True)
class Moved:
    """What a row moves.

    `runs`: Both trainings. `owner`: Whose row it is. `noisy`: Epsilon of what is released with
    noise. `cuts`: Of that, what cut points are made of.
    """

    runs: tuple
    owner: str
    noisy: float
    cuts: float

    @property
    def spent(self):
        """What the first run says it spent."""
        return self.runs[0].spent

    def seen(self, said):
        """Return the epsilon of all that a guarantee speaks of; infinite where it differs bare."""
        cuts = getattr(said, "unit", "") == "cuts"
        trusted = {role.rstrip("s") for role in getattr(said, "trusted", "").split("+")}
        rows = "rows" in getattr(said, "unprotected", "")
        told = [_told(run, self.owner, trusted, cuts, rows) for run in self.runs]
        return math.inf if told[0] != told[1] else self.cuts if cuts else self.noisy

    def contradicts(self):
        """Yield each finite epsilon of the run that is less than what the row moves."""
        for said in self.spent:
            if said.budget and said.budget[0] == "epsilon" and math.isfinite(said.epsilon):
                seen = self.seen(said)
                if seen > said.epsilon * (1 + 1e-6) + 1e-9:
                    yield f"{said}, and it is {seen:.4g}"


def moved(protocol, neighbours, schema, defense, owner, seed=0):
    """Train on two tables that differ by a row of one party's, and return what it moves.

    Parameters
    ----------
    protocol : Protocol
    neighbours : pair of mapping of str to LocalData
    schema : Schema
    defense : Composition
    owner : str
        Whose row it is.
    """
    reason = fit(protocol, defense)
    if not reason.ok:
        raise UsageError(str(reason))
    tape, runs = Tape(), []
    laws = protocol.laws(schema).items()
    tape.kinds = {kind for (kind, _), law in laws if isinstance(law, Share)}
    tape.kinds |= {*defense.shared(schema, protocol.parameters)}
    for at, held in zip((None, 0), neighbours, strict=True):
        tape.at = at
        with replayed(tape):
            runs.append(
                train(protocol, held, schema, defense=defense, seed=seed, noise_from="seed")
            )
    noisy = sum(tape.pure.values())
    if tape.gaussian:
        delta = max(said.delta for said in runs[0].spent if hasattr(said, "delta"))
        noisy = max(noisy, _gaussian(math.sqrt(tape.gaussian), delta))
    return Moved(tuple(runs), owner, noisy, tape.pure["cuts"])


def _told(run, owner, trusted, cuts, rows):
    """Return what others than the owner of a row and whoever is trusted were told.

    Where the number of ``rows`` is not protected, not how much is sealed.
    """
    roles = run.transcript.roles
    return [
        (d.sender, others, encode(d.message))
        for d in run.transcript
        if (others := [r for r in d.receivers if r != owner and roles[r] not in trusted])
        and (not cuts or type(d.message) in CUT_MESSAGES)
        and not (rows and closed(d.message))
    ]


def _gaussian(distance, delta):
    """Return epsilon of Gaussian noise of scale 1 at that distance (Balle and Wang 2018, Eq. 6)."""

    def over(epsilon):
        ends = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return norm.cdf(ends[0]) - math.exp(epsilon) * norm.cdf(ends[1]) - delta

    return 0.0 if over(0.0) <= 0 else float(brentq(over, 0.0, 600.0))


def without_last_row(held, name):
    """Return local data without the last row of one party's."""
    one, n = held[name], len(held[name]) - 1
    cut = {f.name: getattr(one, f.name) for f in fields(one)}
    for key in ("ids", "X", "y", "weight"):
        cut[key] = None if cut[key] is None else cut[key][:n]
    return {**held, name: type(one)(**cut)}


def with_other_label(held, name, classes):
    """Return local data in which the label of the last row of one party's is another."""
    y = held[name].y.copy()
    y[-1] = (y[-1] + 1) % classes
    return {**held, name: replace(held[name], y=y)}
