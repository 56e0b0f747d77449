"""Source of the noise: an adversary that guesses the seed cannot reproduce the noise."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedtrees import FederatedGBDTClassifier
from fedtrees.cli.main import app
from fedtrees.conformance.samples import sample_local_data, sample_table
from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import (
    ApproximateDP,
    LabelDP,
    PureDP,
    Structural,
    without_noise,
)
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode
from fedtrees.defenses.dp_sgd import DPSGD
from fedtrees.experiments.evaluate import make_defense
from fedtrees.model_audit.audit import audit
from fedtrees.model_audit.readers import read_model
from fedtrees.model_audit.verdict import verdict
from fedtrees.protocols.networks.network_training import drawn
from fedtrees.protocols.training import train
from fedtrees.trees.forest.random_decision import draw_splits

X = np.random.default_rng(0).integers(0, 2, (90, 6)).astype(np.float32)
ROWS = Table(X, X[:, 0].astype(int))
BITS = tuple(Feature(n, "categorical", categories=("0", "1")) for n in "abcdef")
SCHEMA = Schema(BITS, "y")
SEED = 777
SMALL = "fedtree-hist[trees=1,max_depth=2]"


def released(more_parameters="", **options):
    protocol = register.make(
        "protocol", parse_grid(f"dp-forest[epsilon=0.1,depth=3,trees=4{more_parameters}]")[0]
    )
    local_data = over_clients([ROWS.take(part) for part in np.array_split(np.arange(len(ROWS)), 3)])
    return train(protocol, local_data, SCHEMA, seed=SEED, **options)


def drawn_tests(forest):
    return [(f.tobytes(), t.tobytes()) for f, t in zip(
        forest.splits.feature, forest.splits.threshold, strict=True
    )]  # fmt: skip


def counts_by_guessing_seeds(run):
    """Return the seed that reproduces the public tests, and the counts minus its noise."""
    protocol_object, forest = run.protocol, run.model
    for seed in range(2 * SEED):
        server = Streams(seed, "seed").child("server")
        splits = draw_splits(
            SCHEMA,
            protocol_object.depth,
            lambda tree_number, streams=server: streams.rng("tests", tree_number),
            1,
            bins=protocol_object.bins,
        )
        if splits.feature[0].tobytes() == forest.splits.feature[0].tobytes():
            noise = protocol_object.law.send(0 * forest.counts, server.noise.rng("noise"))
            return seed, forest.counts - noise
    raise AssertionError("no seed draws these tests")


def test_public_tests_reveal_the_seed_but_the_seed_does_not_reveal_the_noise():
    run = released(noise_from="system")
    exact = run.model.splits.count(ROWS.X, ROWS.y, 2)
    seed, guess = counts_by_guessing_seeds(run)
    assert seed == SEED
    assert (guess == exact).mean() < 0.2  # noise of scale 40: few differences of two draws are 0
    assert np.abs(guess - exact).mean() > 20
    second_run = released(noise_from="system")
    assert drawn_tests(second_run.model) == drawn_tests(run.model)
    assert not np.array_equal(second_run.model.counts, run.model.counts)


def test_noise_of_a_seed_is_read_by_trying_seeds_and_so_bounds_nothing():
    run = released(noise_from="seed")
    exact = run.model.splits.count(ROWS.X, ROWS.y, 2)
    assert np.array_equal(counts_by_guessing_seeds(run)[1], exact)
    assert run.spent[0].epsilon == pytest.approx(0.1)
    relied_on = run.to_rely_on().spent[0]
    assert relied_on == PureDP(np.inf, unprotected=("rows", "noise"), trusted=("server",))
    assert released(noise_from="system").to_rely_on().spent[0].epsilon == pytest.approx(0.1)


def test_noise_comes_from_the_operating_system_by_default(default_noise_from):
    assert default_noise_from == "system"
    with pytest.raises(UsageError, match="noise_from 'clock'"):
        released(noise_from="clock")


def test_noise_shares_come_from_the_operating_system_too():
    run, second_run = (released(",noise=distributed", noise_from="system") for _ in range(2))
    assert not np.array_equal(run.model.counts, second_run.model.counts)


def test_only_guarantees_that_rest_on_noise_become_void():
    assert without_noise(ApproximateDP(1.0, 1e-5)) == ApproximateDP(
        np.inf, 1e-5, unprotected=("noise",)
    )
    assert without_noise(LabelDP(1.0)) == LabelDP(np.inf)
    assert without_noise(Structural()) == Structural()


@pytest.mark.parametrize("source", ["system", "seed"])
def test_train_writes_the_noise_source_and_voids_the_claim(tmp_path, source):
    file = tmp_path / "model.npz"
    arguments = ["-p", "dp-forest[trees=2,depth=2]", "--data", "digits", "--format", "json"]
    arguments += ["--noise-from", source, "--output", str(file)]
    facts = [json.loads(CliRunner().invoke(app, ["train", *arguments]).stdout) for _ in range(2)]
    assert facts[0]["noise_from"] == source
    assert (facts[0]["utility"] == facts[1]["utility"]) == (source == "seed")
    void_claim = "pure-dp[epsilon=inf,unprotected=rows+noise,trusted=server]"
    assert (facts[0]["spent"] == void_claim) == (source == "seed")
    verdict_text = " ".join(verdict(audit(read_model(file))))
    assert ("claim is void" in verdict_text) == (source == "seed")


@pytest.mark.parametrize("source", ["system", "seed"])
def test_estimators_draw_noise_from_the_system_by_default(source):
    estimator = FederatedGBDTClassifier(
        n_estimators=2, max_depth=2, defense="laplace-hist[epsilon=5]", random_state=3,
        cuts="equal-width", noise_from=source,
    )  # fmt: skip
    fits = [estimator.fit(ROWS.X, ROWS.y).predict_proba(ROWS.X) for _ in range(2)]
    assert np.array_equal(*fits) == (source == "seed")
    spent = estimator.training_.spent[1]
    assert ("noise" in spent.unprotected) == (source == "seed")
    assert FederatedGBDTClassifier().noise_from == "system"


@pytest.mark.parametrize(
    ("protocol", "defense"),
    [
        ("dp-forest[trees=2,depth=2,mechanism=published]", "none"),
        ("dp-forest[trees=2,depth=2,noise=distributed]", "none"),
        ("dp-gbdt[trees=2]", "none"),
        ("dp-gbdt[trees=2,noise=distributed]", "none"),
        (SMALL, "laplace-hist[epsilon=1]"),
        (SMALL, "laplace-gradient[epsilon=1]"),
        (SMALL, "dp-grid-cuts[epsilon=1]"),
        (SMALL, "dp-quantile-cuts[epsilon=1]"),
        (SMALL, "hist-rounding[step=1,random=true]"),
        ("secureboost[trees=1]", "lp-1st[epsilon=0.5]"),
        ("secureboost[trees=1]", "lp-mst[epsilon=0.5]"),
        ("secureboost[trees=1]", "answer-noise[scale=0.1]"),
    ],
)
def test_every_noisy_defense_draws_from_the_system(protocol, defense):
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    composition, (table, schema) = make_defense(parse_composed([defense])[0]), sample_table()
    local_data = sample_local_data(protocol_object)

    def messages_and_predictions(noise_from):
        run = train(
            protocol_object, local_data, schema, defense=composition, seed=1, noise_from=noise_from
        )
        return [encode(delivery.message) for delivery in run.transcript], run.predict(
            table.X
        ).tobytes()

    assert messages_and_predictions("seed") == messages_and_predictions("seed")
    assert messages_and_predictions("system") != messages_and_predictions("system")


def test_rows_that_are_drawn_each_by_itself_are_secret():
    each, batch = (
        [drawn(400, 100, Streams(3), 0, 0, defense).tolist() for _ in range(2)]
        for defense in (Composition((DPSGD(epsilon=1.0),)), Composition())
    )
    assert each[0] != each[1]  # dp-sgd pays less epsilon for the sampling
    assert batch[0] == batch[1]
