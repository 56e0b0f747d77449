"""Ceilings on the scores of all attacks, by enumeration of small tables: `fedtrees privacy bound`.

A ceiling is the largest expected score over all attacks. It follows from the posterior distribution
of the tables given the view, and is attained by the attack that maximises the expected score. A
registered attack can be compared with the ceiling, and with itself on an equal view, which tests
that it uses only its view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import AlignedTables, TinyTables
from fedtrees.bounds.views import Tiny, Views, views
from fedtrees.core.claims import Guess, Membership, Records
from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Composed, Spec
from fedtrees.core.view import View
from fedtrees.isolation.process import attack_process
from fedtrees.protocols.base import Protocol


@dataclass(frozen=True)
class Ceiling:
    """Largest expected score without and with the view. Both values are attained by some attack.

    Attributes
    ----------
    rows : int
        Number of rows that an attack submits, 1 if the score is an AUC.
    blind : float
        Largest expected number of correct rows (or AUC) given only the local data and the prior.
    ceiling : float
        The same given the view, too.
    views : int
        Number of different views.
    """

    rows: int
    blind: float
    ceiling: float
    views: int

    def share(self, score: float) -> float | None:
        """Return ``(score - blind) / (ceiling - blind)``, None if ceiling and blind are equal."""
        gain = self.ceiling - self.blind
        return None if gain < 1e-9 else (score - self.blind) / gain


def ceiling(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of the number of correct rows.

    Let M_v be the number of the victims' rows of type v. The k-th submitted row of type v is
    correct with probability ``P(M_v >= k | view)``, which decreases with k. The ceiling for n
    submitted rows is therefore the sum of the n largest of these probabilities over all v and k,
    averaged over the views. If rows are known by id (vertical), it is the sum over the rows of the
    largest posterior probability of a value.
    """
    victims, places = tables.victims(views.principals), tables.places(views.principals)
    rows = int(victims[0].sum())
    blind, best = (
        best_of(tables, victims, number, places)
        for number in (local_views(tables, views.principals), views.of)
    )
    return Ceiling(rows, float(blind.sum()), float(best.sum()), len(best))


def local_views(tables: TinyTables, principals: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each table. Tables with equal local data of the principals share one."""
    codes = tables.encode_local_data(principals)
    return np.unique(codes, axis=0, return_inverse=True)[1].ravel()


def recognition(tables: TinyTables, views: Views) -> Ceiling:
    """Return blind baseline and ceiling of the AUC of membership inference.

    Given the view, a row of the victims has type v with probability ``E[M_v | view] / n``, and a
    non-member has the prior probability of v. The likelihood ratio is the best score of a type
    (Neyman and Pearson 1933).
    """
    victims = tables.victims(views.principals)
    values = []
    for number in (local_views(tables, views.principals), views.of):
        expected_counts = np.zeros((int(number.max()) + 1, victims.shape[1]))
        np.add.at(expected_counts, number, tables.weight[:, None] * victims)
        chance = np.bincount(number, tables.weight)
        values.append(sum(c * rank_probability(m / tables.prior, m, tables.prior)
                         for c, m in zip(chance, expected_counts, strict=True)))  # fmt: skip
    return Ceiling(1, float(values[0]), float(values[1]), int(views.of.max()) + 1)


def rank_probability(
    score: NDArray[np.float64], is_present: NDArray[np.float64], prior: NDArray[np.float64]
) -> float:
    """Return the probability that a row of the victims scores above a non-member (AUC).

    A tie counts one half. The arguments have shape (V,): the score of every row type, the number of
    the victims' rows of this type up to a constant factor, and its probability for a non-member.
    """
    # Entry (v, w): a member of type v scores above a non-member of type w.
    above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
    return float(is_present / is_present.sum() @ above @ prior)


def best_of(
    tables: TinyTables, victims: NDArray[np.int64], at: NDArray[np.int64], places: int = 0
) -> NDArray[np.float64]:
    """Return the largest expected number of correct rows, times the probability of the view.

    Parameters
    ----------
    tables : TinyTables
        Enumerated tables with their prior probabilities.
    victims : int64 array, shape (T, V)
        Result of `TinyTables.victims`.
    at : int64 array, shape (T,)
        Number of the view of each table.
    places : int
        Number of rows that are known by id. An attack then makes one guess per row. 0 if rows have
        no order.

    Returns
    -------
    best : float64 array, shape (n_views,)
        The sum over the views is the ceiling.
    """
    n = 1 if places else int(victims[0].sum())
    # Whether a table has at least k rows of type v, for each v and k.
    is_correct = victims[:, :, None] >= np.arange(1, n + 1)
    chance = np.zeros((at.max() + 1, is_correct[0].size))
    np.add.at(chance, at, tables.weight[:, None] * is_correct.reshape(len(at), -1))
    if places:
        return np.asarray(chance.reshape(len(chance), places, -1).max(axis=2).sum(axis=1))
    # The n largest probabilities, over types v and multiplicities k.
    return np.asarray(np.sort(chance, axis=1)[:, -n:].sum(axis=1), dtype=np.float64)


def splits(views: Views, same_view: NDArray[np.int64]) -> tuple[int, int]:
    """Return the number of sets of tables that should have equal views, and of those that do not.

    `same_view` is an int array of shape (T, m) with the information that a defense is meant to
    reveal. Tables with equal rows of this array form one set.
    """
    _, group = np.unique(same_view, axis=0, return_inverse=True)
    pairs = np.unique(np.column_stack([group.ravel(), views.of]), axis=0)
    # A set with several views is distinguished although it should not be.
    seen = np.bincount(pairs[:, 0])
    return len(seen), int((seen > 1).sum())


def pool_types(tables: TinyTables) -> NDArray[np.int64]:
    """Return the information in a secure sum: rows of each type at all clients, shape (T, V)."""
    return np.asarray(tables.counts.sum(axis=1), dtype=np.int64)


#: Function from a view to the guess of an attack, None if the attack returns no guess.
Submits = Callable[[View], Guess | None]


@dataclass(frozen=True)
class Attacked:
    """Score of an attack over tables that are drawn with their prior probability.

    The score is the number of correct rows, or an AUC for membership inference.

    Attributes
    ----------
    score, error : float
        Mean and standard error of the expected score given the view. The expectation is over all
        tables that give the same view.
    beyond, beyond_error : float
        Mean and standard error of the score on the drawn table minus the expected score. The mean
        is 0 for an attack that uses only its view.
    """

    score: float
    error: float
    beyond: float
    beyond_error: float

    @property
    def pure(self) -> bool:
        """Whether `beyond` is at most four standard errors above 0.

        Otherwise the attack uses information that is not in its view.
        """
        return self.beyond <= 4 * self.beyond_error + 1e-9


def submit_attack(attack: Spec) -> Submits:
    """Return a function that runs a registered attack on a view, in a separate process."""

    return lambda view: attack_process().run(attack, view).guess


def recognise_members(tiny: Tiny, views: Views, attack: Spec, draws: int = 100) -> Attacked:
    """Run a membership inference attack on tables that are drawn with their prior probability.

    The candidates are one row of every type. The score is the AUC of
    `fedtrees.bounds.ceilings.recognition`, and 1/2 if the attack makes no claim. Arguments are as
    in `attack_tables`, with a registered attack instead of a function.
    """
    tables = tiny.tables
    victims = tables.victims(views.principals)
    candidates = tables.table_of(range(len(tables.types)))
    run_attack = submit_attack(attack)

    def scores(t: int, view: View | None, same_view: NDArray[np.intp]) -> tuple[float, float]:
        guess = None if view is None else run_attack(replace(view, candidates=candidates))
        claims = () if guess is None else guess.all(Membership)
        score = claims[0].score if claims else np.zeros(len(candidates))
        posterior_counts = np.average(victims[same_view], axis=0, weights=tables.weight[same_view])
        return (
            rank_probability(score, posterior_counts, tables.prior),
            rank_probability(score, victims[t].astype(np.float64), tables.prior),
        )

    return _average_scores(tiny, views, draws, scores)


def attack_tables(tiny: Tiny, views: Views, submits: Submits, draws: int = 100) -> Attacked:
    """Run an attack on tables that are drawn with their prior probability.

    Rows or values without a claim are completed by the best blind guess.

    Parameters
    ----------
    tiny : Tiny
        Enumerated tables, protocol and defense.
    views : Views
        Views of all tables.
    submits : callable
        Function from a view to a guess, for example from `submit_attack`.
    draws : int
        Number of tables.

    Returns
    -------
    result : Attacked
        Mean number of correct rows with its standard error.
    """
    tables, victims = tiny.tables, tiny.tables.victims(views.principals)

    def scores(t: int, view: View | None, same_view: NDArray[np.intp]) -> tuple[float, float]:
        # If the training fails, there is no view, and the blind guess is scored.
        guess = (None if view is None else submits(view)) or Guess.none("the attack does not apply")
        types = _submission(tables, views.principals, t, guess)
        right = np.minimum(victims[same_view], types).sum(axis=1)
        expected = float(np.average(right, weights=tables.weight[same_view]))
        return expected, float(np.minimum(victims[t], types).sum())

    return _average_scores(tiny, views, draws, scores)


def _average_scores(
    tiny: Tiny,
    views: Views,
    draws: int,
    scores: Callable[[int, View | None, NDArray[np.intp]], tuple[float, float]],
) -> Attacked:
    """Average the scores of an attack over tables that are drawn with their prior probability.

    ``scores(t, view, same_view)`` runs the attack on the view of table t, which is None if the
    training fails. It returns the expected score over the tables `same_view`, which give the same
    view, and the score on table t.
    """
    expected, beyond = list[float](), list[float]()
    rng, weight = np.random.default_rng(tiny.seed), tiny.tables.weight
    for t in rng.choice(len(weight), draws, p=weight).tolist():
        view = tiny.view(t, views.principals)
        expected_score, score = scores(t, view, np.flatnonzero(views.of == views.of[t]))
        expected.append(expected_score)
        beyond.append(score - expected_score)
    return Attacked(*_mean(expected), *_mean(beyond))


def _mean(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _submission(
    tables: TinyTables, principals: Sequence[str], at: int, guess: Guess
) -> NDArray[np.int64]:
    """Convert a guess to the coding of `TinyTables.victims`, with the number of victims' rows.

    Missing rows are chosen greedily to maximise the expected number of correct rows, given only the
    local rows of the principals in table `at`.
    """
    victims, local_values = tables.victims(principals), tables.encode_local_data(principals)
    same_local_data = np.flatnonzero((local_values == local_values[at]).all(axis=1))
    weight = tables.weight[same_local_data]
    if isinstance(tables, AlignedTables) and tables.places(principals):
        return tables.encode_claims(
            principals, guess, weight @ victims[same_local_data] / weight.sum()
        )
    n, V, claims = int(victims[at].sum()), victims.shape[1], guess.all(Records)
    claimed = _types_of(claims[0].table)[:n] if claims else np.zeros(0, dtype=np.int64)
    types = np.bincount(claimed, minlength=V)
    for _ in range(n - int(types.sum())):
        # A further row of type v is correct if the victims have more than types[v] rows of it.
        types[np.argmax(weight @ (victims[same_local_data] > types))] += 1
    return types


def _types_of(table: Table) -> NDArray[np.int64]:
    """Return the nearest type of every row, int64, shape (n,). A missing value counts as 0."""
    rows = np.column_stack([np.nan_to_num(table.X) > 0.5, table.y > 0.5])
    powers: NDArray[np.int64] = 2 ** np.arange(rows.shape[1])[::-1]
    return np.asarray(rows @ powers, dtype=np.int64)


#: Parameters of a protocol on small tables. Three trees already reveal most information about so
#: few rows. Leaves may contain a single row. With a fixed base score, tables with a single class
#: can be used for training, too.
SMALL: dict[str, Any] = {
    "trees": 3, "max_depth": 2, "min_child_weight": 0.0, "base_score": 0.5, "colsample_bytree": 1.0,
}  # fmt: skip
#: Protocols with their defenses that are enumerated if the user names none.
USUAL = (
    ("fedtree-hist", ("none", "split-only", "leaf-rounding[decimals=1]", "secure-sum",
                      "secure-sum+public-cuts",
                      "secure-sum+public-cuts+hist-rounding[step=1]")),
    ("nvflare-hist", ("none",)),
    ("flower-bagging", ("none",)),
    ("flower-cyclic", ("none",)),
)  # fmt: skip


def tiny(tables: TinyTables, protocol: Spec, defense: Composed, seed: int = 0) -> Tiny:
    """Construct protocol and defense for enumerated tables.

    Parameters that the protocol does not specify are taken from `SMALL`. For a vertical protocol,
    `tables` is replaced by `AlignedTables` with the total number of rows.
    """
    accepted = signature(register.get("protocol", protocol.name)).parameters
    small = {name: value for name, value in SMALL.items() if name in accepted}
    instance = register.make("protocol", Spec(protocol.name, {**small, **protocol.params}))
    if instance.layout != Protocol.layout:
        names = tuple(instance.holder_names(instance.info.default_parties))
        tables = AlignedTables(tables.columns, (sum(tables.rows),), tables.agrees, names)
    parts = tuple(register.make("defense", part) for part in defense.parts)
    return Tiny(tables, instance, Composition(parts), seed)


def lines(
    tables: TinyTables, protocol: Spec, defense: Composed, threats: Sequence[str],
    attacks: Sequence[Spec] = (), draws: int = 100, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Compute blind baseline, ceiling and attack scores for every threat model.

    Parameters
    ----------
    tables : TinyTables
        Size of the tables.
    protocol : Spec
        Protocol.
    defense : Composed
        Defense.
    threats : sequence of str
        Threat models. Empty: one for every role of the protocol.
    attacks : sequence of Spec
        Attacks to run. Only the one with the best score is reported.
    draws : int
        Number of tables that each attack is run on.
    seed : int
        Randomness of training and draws.

    Returns
    -------
    lines : list of dict
        One dict per threat model, and a further one if there are membership inference attacks. If
        there is no ceiling, a single dict with the reason under ``why``. ``alike`` and
        ``told_apart`` are the results of `splits`, if a defense reveals only sums and the adversary
        has no data.
    """
    named = {"protocol": str(protocol), "defense": str(defense)}
    try:
        tiny_run = tiny(tables, protocol, defense, seed)
        if isinstance(tiny_run.tables, AlignedTables) and any(map(_infers_membership, attacks)):
            raise UsageError("rows are known by id, and with them who is in the table")
        all_views = views(tiny_run, threats or [*dict.fromkeys(tiny_run.roles.values())])
    except FedtreesError as err:
        return [{**named, "why": str(err)}]
    results = []
    for view in all_views:
        membership_attacks = [*filter(_infers_membership, attacks)]
        row_attacks = [a for a in attacks if a not in membership_attacks]
        if row_attacks or not membership_attacks:
            results.append(named | _reconstruction_line(tiny_run, view, row_attacks, draws))
        if membership_attacks:
            results.append(named | _membership_line(tiny_run, view, membership_attacks, draws))
    return results


def _infers_membership(attack: Spec) -> bool:
    """Return whether an attack scores candidates of membership inference."""
    return bool(getattr(register.get("attack", attack.name), "receives_candidates", False))


def _reconstruction_line(
    tiny_run: Tiny, view: Views, attacks: Sequence[Spec], draws: int
) -> dict[str, Any]:
    """Return ceiling and best attack score in numbers of rows."""
    top = ceiling(tiny_run.tables, view)
    line = _ceiling_line(view, top, top.rows)
    # A party with data can subtract its part from a sum, so that `pool_types` does not describe its
    # view.
    summed = bool(tiny_run.defense.summed_types)
    holders = tiny_run.protocol.holder_names(tiny_run.tables.holders)
    if summed and not {*view.principals} & {*holders}:
        line["alike"], line["told_apart"] = splits(view, pool_types(tiny_run.tables))
    return line | _best_attack(
        top, {str(a): attack_tables(tiny_run, view, submit_attack(a), draws) for a in attacks}
    )


def _membership_line(
    tiny_run: Tiny, view: Views, attacks: Sequence[Spec], draws: int
) -> dict[str, Any]:
    """Return ceiling and best attack score as AUC of membership inference."""
    top = recognition(tiny_run.tables, view)
    return _ceiling_line(view, top, "AUC") | _best_attack(
        top, {str(a): recognise_members(tiny_run, view, a, draws) for a in attacks}
    )


def _ceiling_line(view: Views, top: Ceiling, rows: int | str) -> dict[str, Any]:
    """Return the part of a line that does not depend on attacks."""
    return {
        "threat": view.threat, "rows": rows, "blind": top.blind, "ceiling": top.ceiling,
        "tables": len(view.of), "views": top.views, "refused": int(view.refused.sum()),
    }  # fmt: skip


def _best_attack(top: Ceiling, scored: dict[str, Attacked]) -> dict[str, Any]:
    """Return the score of the attack with the largest one. Empty if no attack was run."""
    if not scored:
        return {}
    best = max(scored, key=lambda name: scored[name].score)
    result = scored[best]
    return {"attack": best, "score": result.score, "error": result.error, "pure": result.pure,
            "share": top.share(result.score)}  # fmt: skip
