"""Compute the exact privacy loss of a run by two tables that differ in one row.

Both trainings use the same randomness. The releases of the first run replace those of the second,
so that both continue equally. The probability of each release under either table is known exactly,
which gives its privacy loss. Any other message that differs is not protected by noise.
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

from fedtrees.core.channel import Share
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.secure_sum import IdealAggregation, check_same_fields, summed_fields
from fedtrees.core.transcript import Transcript
from fedtrees.core.wire import encode
from fedtrees.defenses import cut_points, label_noise
from fedtrees.defenses.cut_points import PrivateQuantileCuts
from fedtrees.messages.aggregation import MaskSurvivors, OpenedSum
from fedtrees.messages.horizontal import CUT_MESSAGES, GridCounts
from fedtrees.privacy.mechanisms import rank_labels
from fedtrees.privacy.noise import Gaussian, Noise, TruncatedLaplace
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.forests import dp_forest
from fedtrees.protocols.horizontal import dp_gbdt
from fedtrees.protocols.training import train

OPENINGS: tuple[type, ...] = (IdealAggregation,)
if CRYPTO:
    from fedtrees.crypto.masking import MaskingServer
    from fedtrees.crypto.paillier_sum import PaillierServer

    OPENINGS = (IdealAggregation, MaskingServer, PaillierServer)


@dataclass
class Tape:
    """Releases of the first run. The second run reads them and adds up their privacy loss.

    Attributes
    ----------
    releases : list
        Pairs of a value and its release.
    at : int or None
        Position in the second run, None in the first run.
    pure : Counter
        Log of the largest ratio of probabilities, in nats, by kind of release.
    gaussian : float
        Sum of squared distances divided by variances.
    shares : list
        Mechanism, scale and number of parties of the last noise shares.
    """

    releases: list = field(default_factory=list)
    at: int | None = None
    pure: Counter = field(default_factory=Counter)
    gaussian: float = 0.0
    shares: list = field(default_factory=list)

    def release(self, x, draw, cost):
        """Return a release of x: a new draw in the first run, the same draw in the second."""
        if self.at is None:
            self.releases.append((x, draw()))
            return self.releases[-1][1]
        before, y = self.releases[self.at] if self.at < len(self.releases) else (None, None)
        self.at += 1
        # The number of releases depends on the row, which noise cannot hide.
        if y is None or np.shape(before) != np.shape(x):
            self.pure["bare"] = math.inf
            return draw()
        cost(np.asarray(before, dtype=np.float64), np.asarray(x, dtype=np.float64))
        return y

    def noisy(self, channel, x, rng, send):
        """Replace `Noise.send`."""

        def cost(before, after):
            steps = np.abs(before - after) / np.asarray(channel.scale)
            if isinstance(channel, Gaussian):
                self.gaussian += float((steps**2).sum())
                return
            cut_off = math.log(2) * np.count_nonzero(steps) * isinstance(channel, TruncatedLaplace)
            self.pure["noise"] += float(steps.sum()) + cut_off

        return self.release(np.array(x), lambda: send(channel, x, rng), cost)

    def share(self, mechanism):
        """Replace a noise share by zero. The noise is added to the sum instead."""

        def none(scale, shape, rng, parties):
            self.shares = [*self.shares[-1:], (mechanism, scale, parties)]
            return np.zeros(shape, dtype=np.int64)

        return none

    def opened(self, total, n_parties_left):
        """Add the joint noise of the given number of parties to a sum."""
        (name, x), *other_fields = summed_fields(total).items()
        mechanism, _, parties = self.shares[-1]
        share = n_parties_left / parties
        if mechanism == "laplace":
            scale = self.shares[-1][1]
            noise = Shared(scale, share)
            kind = "cuts" if isinstance(total, GridCounts) else "shares"

            def cost(a, b):
                self.pure[kind] += noise.cost(a, b)

        else:
            scale = np.array([s for _, s, _ in self.shares[-2:]]) * math.sqrt(share)

            def cost(a, b):
                self.gaussian += float((((a - b) / scale) ** 2).sum())

            noise = Shared(float(scale.max()), 1.0)
        rng = np.random.default_rng(len(self.releases))
        y = self.release(np.array(x), lambda: x + noise.draw(x.shape, rng), cost)
        return replace(total, **{name: y}, **dict(other_fields))

    def quantiles(self, part, message, ctx, send):
        """Replace private quantiles. Only the loss of the number of rows is counted."""
        each = part.epsilon / (ctx.local_data.X.shape[1] + 1)

        def cost(a, b):
            self.pure["cuts"] += float(np.abs(a - b).sum()) * each

        return self.release(len(ctx.local_data), lambda: send(part, message, ctx), cost)

    def answers(self, y, prior, odds, rng, send, published):
        """Replace randomised response."""

        def cost(before, after):
            for row in np.flatnonzero(before != after):
                chances = matrix(prior[row].tolist(), odds, published=published)
                a, b = chances[int(before[row])], chances[int(after[row])]
                self.pure["labels"] += max(map(_ratio, a, b))

        return self.release(y.copy(), lambda: send(y, prior, odds, rng, published=published), cost)

    def majority(self, counts, epsilon, rng, send):
        """Replace permute-and-flip between two classes."""

        def cost(before, after):
            for a, b in zip(before.reshape(-1, 2), after.reshape(-1, 2), strict=True):
                self.pure["majority"] += max(map(_ratio, _flip(a, epsilon), _flip(b, epsilon)))

        return self.release(counts.copy(), lambda: send(counts, epsilon, rng), cost)


def matrix(prior, odds, *, published=False):
    """Return the probabilities of `respond` for every true label (row) and answer (column)."""
    K = len(prior)
    order, among = rank_labels(np.array([prior], dtype=np.float64), odds)
    k = int(among[0])
    top = order[0, :k].tolist()
    probabilities = [[Fraction(0)] * K for _ in range(K)]
    for true_label in range(K):
        if true_label in top:
            for answer in top:
                probabilities[true_label][answer] = (odds if answer == true_label else 1) / (
                    odds + k - 1
                )
        else:
            outside = range(K) if published else top
            for answer in outside:
                probabilities[true_label][answer] = Fraction(1, len(outside))
    return probabilities


def _ratio(p, q):
    """Return the absolute log ratio of two probabilities."""
    return 0.0 if p == q else math.inf if not p or not q else abs(math.log(p / q))


def _flip(counts, epsilon):
    """Return the probabilities of both answers of permute-and-flip."""
    behind = 0.5 * math.exp(-epsilon * abs(counts[0] - counts[1]))
    return (1 - behind, behind) if counts[0] >= counts[1] else (behind, 1 - behind)


@dataclass(frozen=True)
class Shared:
    """Sum of the noise shares that are present. All shares would be discrete Laplace noise."""

    scale: float
    share: float

    @property
    def _law(self):
        return self.share, -math.expm1(-1 / self.scale)

    def draw(self, shape, rng):
        """Draw the noise."""
        return rng.negative_binomial(*self._law, shape) - rng.negative_binomial(*self._law, shape)

    def cost(self, before, after):
        """Return the log of the largest ratio of probabilities, summed over differing numbers."""
        steps = np.abs(before - after).astype(np.int64)
        if not steps.any():
            return 0.0
        # Probabilities of the difference of two negative binomial variables, by convolution.
        n = int(40 * self.scale) + 64
        share_probabilities = np.exp(nbinom.logpmf(np.arange(n), *self._law))
        chance = np.log(
            np.correlate(share_probabilities, share_probabilities, "full")[n // 2 : -(n // 2)]
        )
        worst = {s: np.abs(chance[s:] - chance[:-s]).max() for s in {*steps[steps > 0].tolist()}}
        return float(sum(worst[s] for s in steps[steps > 0].tolist()))


@contextmanager
def replayed(tape):
    """Pass all noise of a run through a tape."""
    send_noise, kinds = Noise.send, OPENINGS
    respond, flip = label_noise.respond, dp_forest.permute_and_flip
    quantiles, summed = PrivateQuantileCuts.transform_message, {k: k.open_sum for k in kinds}
    record_message, bare = Transcript.record, []

    def record(self, sender, receivers, message, reason):
        is_own_message = receivers == (sender,) or isinstance(message, OpenedSum)
        # The sum without noise is not recorded. It is opened with noise below.
        if not (bare and is_own_message):
            record_message(self, sender, receivers, message, reason)

    def opened(kind):
        def method(self, waiting, exchange, reason):
            n_left, send = [len(waiting)], exchange.request

            def request(to, message, *arguments, **keywords):
                if isinstance(message, MaskSurvivors):
                    n_left.append(len(message.parties.split(",")))
                return send(to, message, *arguments, **keywords)

            shared = type(check_same_fields(waiting.values())) in tape.kinds
            bare.extend([True] * shared)
            exchange.request = request
            total = summed[kind](self, waiting, exchange, reason)
            bare.clear()
            return tape.opened(total, n_left[-1]) if shared else total

        return method

    replacements = [
        (Noise, "send", lambda channel, x, rng=None: tape.noisy(channel, x, rng, send_noise)),
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
            "transform_message",
            lambda part, message, ctx: tape.quantiles(part, message, ctx, quantiles),
        ),
        *((kind, "open_sum", opened(kind)) for kind in kinds),
        (Transcript, "record", record),
    ]
    with ExitStack() as stack:
        for where, name, replacement in replacements:
            stack.enter_context(patch.object(where, name, replacement))
        yield


@dataclass(frozen=True)
class Moved:
    """Privacy loss caused by one row.

    Attributes
    ----------
    runs : tuple of Training
        Both trainings.
    owner : str
        Party that has the row.
    noisy : float
        Epsilon of all noisy releases.
    cuts : float
        Part of it that belongs to cut points.
    """

    runs: tuple
    owner: str
    noisy: float
    cuts: float

    @property
    def spent(self):
        """Privacy budget that the first run reports."""
        return self.runs[0].spent

    def epsilon_of_scope(self, guarantee):
        """Return the epsilon of a guarantee's scope, infinite if unprotected messages differ."""
        cuts = getattr(guarantee, "unit", "") == "cuts"
        trusted = {role.rstrip("s") for role in getattr(guarantee, "trusted", ())}
        rows = "rows" in getattr(guarantee, "unprotected", ())
        visible = [_told(run, self.owner, trusted, cuts, rows) for run in self.runs]
        return math.inf if visible[0] != visible[1] else self.cuts if cuts else self.noisy

    def contradicts(self):
        """Yield each finite reported epsilon that is smaller than the computed one."""
        for guarantee in self.spent:
            if (
                guarantee.budget
                and guarantee.budget[0] == "epsilon"
                and math.isfinite(guarantee.epsilon)
            ):
                epsilon = self.epsilon_of_scope(guarantee)
                if epsilon > guarantee.epsilon * (1 + 1e-6) + 1e-9:
                    yield f"{guarantee}, and it is {epsilon:.4g}"


def moved(protocol, neighbours, schema, defense, owner, seed=0):
    """Train on two tables that differ in one row, and compute the privacy loss of the row.

    Parameters
    ----------
    protocol : Protocol
        Protocol.
    neighbours : pair of mapping of str to LocalData
        Local data with and without the row.
    schema : Schema
        Columns and classes.
    defense : Composition
        Defenses.
    owner : str
        Party that has the row.
    seed : int
        Seed of both trainings.
    """
    reason = check_fit(protocol, defense)
    if not reason.ok:
        raise UsageError(str(reason))
    tape, runs = Tape(), []
    channels = protocol.noise_channels(schema).items()
    tape.kinds = {kind for (kind, _), channel in channels if isinstance(channel, Share)}
    tape.kinds |= {*defense.min_noise_shares(schema, protocol.parameters)}
    for position, local_data in zip((None, 0), neighbours, strict=True):
        tape.at = position
        with replayed(tape):
            runs.append(
                train(protocol, local_data, schema, defense=defense, seed=seed, noise_from="seed")
            )
    noisy = sum(tape.pure.values())
    if tape.gaussian:
        delta = max(guarantee.delta for guarantee in runs[0].spent if hasattr(guarantee, "delta"))
        noisy = max(noisy, _gaussian(math.sqrt(tape.gaussian), delta))
    return Moved(tuple(runs), owner, noisy, tape.pure["cuts"])


def _told(run, owner, trusted, cuts, rows):
    """Return the messages received by parties other than the owner and trusted roles.

    If a guarantee does not protect the number of ``rows``, sealed messages are excluded, because
    their sizes may differ.
    """
    roles = run.transcript.roles
    return [
        (d.sender, others, encode(d.message))
        for d in run.transcript
        if (others := [r for r in d.receivers if r != owner and roles[r] not in trusted])
        and (not cuts or type(d.message) in CUT_MESSAGES)
        and not (rows and has_sealed_field(d.message))
    ]


def _gaussian(distance, delta):
    """Return epsilon of Gaussian noise of scale 1 at a distance (Balle and Wang 2018, Eq. 6)."""

    def over(epsilon):
        ends = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return norm.cdf(ends[0]) - math.exp(epsilon) * norm.cdf(ends[1]) - delta

    return 0.0 if over(0.0) <= 0 else float(brentq(over, 0.0, 600.0))


def without_last_row(local_data, name):
    """Return local data without the last row of one party."""
    party_data, n = local_data[name], len(local_data[name]) - 1
    shortened = {f.name: getattr(party_data, f.name) for f in fields(party_data)}
    for key in ("ids", "X", "y", "weight"):
        shortened[key] = None if shortened[key] is None else shortened[key][:n]
    return {**local_data, name: type(party_data)(**shortened)}


def with_other_label(local_data, name, classes):
    """Return local data in which the last row of one party has another label."""
    y = local_data[name].y.copy()
    y[-1] = (y[-1] + 1) % classes
    return {**local_data, name: replace(local_data[name], y=y)}
