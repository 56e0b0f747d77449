"""Audits with chosen rows and parameters detect a fourth of the noise and accept all of it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from present import here
from typer.testing import CliRunner

from fedtrees.benchmarks.papers.power import MECHANISMS, audit_mechanism, weaken_noise
from fedtrees.cli.main import app
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_one
from fedtrees.defenses.cut_points import PrivateQuantileCuts
from fedtrees.experiments.epsilon_audit import audit
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import FeatureSketch
from fedtrees.privacy.mechanisms import log_chance, private_quantiles

# Settings that need more canaries than a test has time for, or whose spent epsilon is infinite.
_LATER = ("secure-sum", "min-bin", "laplace-gradient", "dp-sgd", "dp-gd", "dp-ebm")
QUICK = [(p, d) for p, d in MECHANISMS if not any(name in p + d for name in _LATER)]
CLAIM_1 = "laplace-hist[epsilon=1,calibrated=true]"


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "defense"), QUICK)
def test_a_fourth_of_the_noise_is_refuted(protocol, defense):
    cell = audit_mechanism(protocol, defense, 4, seed=0, fewer=8)
    assert cell.refuted
    assert cell.epsilon <= cell.outcome.measured.most


@pytest.mark.parametrize(
    ("protocol", "defense"), [c for c in QUICK if c[0].startswith("dp-forest")] + [QUICK[2]]
)
def test_all_of_the_noise_is_not(protocol, defense):
    """At the level of 5%: more than 3 of 8 happens once in 2,700 times where a bound is tight."""
    assert sum(audit_mechanism(protocol, defense, 1, seed, 8).refuted for seed in range(8)) <= 3


@pytest.mark.extra("dp_accounting")
@pytest.mark.extra("torch")
def test_a_sixteenth_of_a_step_of_dp_sgd_is_refuted():
    """Five of these eight audits refute the claim. With the claimed noise one in twenty may."""
    audits = [
        audit_mechanism("fedsgd-mlp", "dp-sgd[epsilon=1]", 16, seed, fewer=8) for seed in range(8)
    ]
    assert sum(audit.refuted for audit in audits) >= 3


@pytest.mark.long
@pytest.mark.extra("interpret")
@pytest.mark.parametrize(("k", "too_little"), [(1, False), (2, True)])
def test_half_the_noise_of_dp_ebm_is_too_little_and_all_is_not(k, too_little):
    cell = audit_mechanism("dp-ebm[epsilon=4]", "none", k, 0, fewer=4)
    assert cell.outcome.noise.share == pytest.approx(1 / k, abs=0.1 / k)  # 384 sums: 4%
    assert (cell.too_little, cell.refuted) == (too_little, False)
    assert 0.5 < cell.epsilon < cell.outcome.spent[0].epsilon


@pytest.mark.extra("interpret")
def test_an_eighth_of_the_noise_of_dp_ebm_is_refuted():
    assert audit_mechanism("dp-ebm[epsilon=4]", "none", 8, 0, fewer=8).refuted


@pytest.mark.long
@pytest.mark.parametrize("protocol", here("protocol", ["vertical-regression"]))
def test_a_sixteenth_of_the_noise_of_dp_gd_is_refuted_and_all_is_not(protocol):
    cells = [audit_mechanism(protocol, "dp-gd[epsilon=1]", k, 0, 8) for k in (16, 1)]
    assert [cell.refuted for cell in cells] == [True, False]


@pytest.mark.long
def test_opening_only_sums_reveals_less():
    """A sum contains the noise of every client."""
    epsilons = [
        audit_mechanism("fedtree-hist", defense, 16, 0, 8).epsilon
        for defense in (f"secure-sum+{CLAIM_1}", CLAIM_1)
    ]
    assert 1 < epsilons[0] <= epsilons[1]


def test_noise_that_earlier_audits_missed_is_detected():
    """Earlier audits of these weakened noises measured 0 (claim 1) and 3.06 (claim 5)."""
    assert audit_mechanism("fedtree-hist", CLAIM_1, 16, 0, 8).epsilon > 2
    assert audit_mechanism("dp-forest[epsilon=5]", "none", 1000, 0).epsilon > 5


def test_published_noise_differs_from_geometric_noise_and_its_claim_from_its_spending():
    text_of = "dp-forest[epsilon=0.3,mechanism={}]".format
    assert 0.3 < audit_mechanism(text_of("published"), "none", 1, 0).epsilon <= 0.3 + np.log(2)
    assert audit_mechanism(text_of("geometric"), "none", 1, 0).epsilon <= 0.3


def test_counts_without_noise_are_distinguished_up_to_the_limit_of_the_audit():
    cell = audit_mechanism("fedtree-hist", "laplace-gradient[epsilon=1]", 1, 0, 8)
    assert cell.epsilon == pytest.approx(cell.outcome.measured.most, abs=1e-3)
    # The declared spending is infinite, so it cannot be refuted.
    assert not cell.refuted


@pytest.mark.parametrize(
    ("protocol", "defense", "runs", "error_message"),
    [
        ("fedtree-hist", "split-only", None, "no epsilon is claimed"),
        ("dp-forest[epsilon=inf]", "none", None, "no epsilon is claimed"),
        ("forest-hist", "dp-grid-cuts[epsilon=1]", None, "no canaries are known"),
        ("dp-forest", "none", 0, "runs=0: give 1 or more"),
    ],
)
def test_settings_that_cannot_be_audited_are_refused(protocol, defense, runs, error_message):
    protocol_object = register.make("protocol", parse_one(protocol).parts[0])
    with pytest.raises(UsageError, match=error_message):
        audit(protocol_object, make_defense(parse_one(defense)), runs=runs)


def test_the_command_reports_the_measured_and_the_largest_measurable_epsilon():
    arguments = ["measure", "dp-forest[epsilon=1]", "--runs", "1", "--format", "json"]
    honest = CliRunner().invoke(app, arguments)
    with weaken_noise(4):
        broken = CliRunner().invoke(app, arguments)
    assert (honest.exit_code, broken.exit_code) == (0, 4)
    for result, refuted in ((honest, False), (broken, True)):
        (row,) = json.loads(result.stdout)
        assert row["refuted"] == refuted
        assert row["measured"].endswith(" (at most 6.146 could be shown)")
        assert row["chosen"] == "trees=1, depth=12"


def test_log_chance_gives_the_probabilities_of_private_quantiles():
    values, rng, n_samples = np.array([1, 1, 3]), np.random.default_rng(0), 1500
    samples = [tuple(private_quantiles(values, 3, 0, 4, 6.0, rng)) for _ in range(n_samples)]
    outcomes, n_times = np.unique(samples, axis=0, return_counts=True)
    chance = np.exp([log_chance(outcome, values, 0, 4, 6.0) for outcome in outcomes])
    all_outcomes = [(a, b, c) for a in range(5) for b in range(a, 5) for c in range(b, 5)]
    total = sum(np.exp(log_chance(np.array(e), values, 0, 4, 6.0)) for e in all_outcomes)
    assert total == pytest.approx(1)
    assert np.abs(n_times - n_samples * chance).max() < 6 * np.sqrt(n_samples * 0.25)


def test_the_log_likelihood_of_a_private_summary_is_consistent():
    """Likelihood ratios for an absent row are bounded by epsilon, and their mean is 1."""
    part, schema = (
        PrivateQuantileCuts(2.0, quantiles=3),
        Schema((Feature("x", low=0.0, high=1.0),), "y"),
    )
    X, rng = np.full((7, 1), 0.75, np.float32), np.random.default_rng(0)
    with_the_row, ratios = np.concatenate([X, np.ones((1, 1), np.float32)]), []

    context = SimpleNamespace(
        local_data=SimpleNamespace(X=X),
        schema=schema,
        rng=lambda _: rng,
        record_release=lambda *_, **__: None,
    )
    empty = FeatureSketch(*(np.zeros(0, dtype) for dtype in ("f4", "i8", "i4", "f4")))
    for _ in range(600):
        summary = part.transform_message(empty, context)
        ratios.append(
            part.log_likelihood(summary, with_the_row, schema)
            - part.log_likelihood(summary, X, schema)
        )
    assert np.abs(ratios).max() <= 2.0 + 1e-9
    assert np.exp(ratios).mean() == pytest.approx(1, abs=4 * np.std(np.exp(ratios)) / 600**0.5)
