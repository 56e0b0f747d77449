"""TimberStrike where sums are not those of whole rows: suppressed, rounded, counted twice."""

import guessed
import numpy as np
from federations import sample_federation

from fedtrees.attacks.clients.per_client import observe_client_histograms
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.ensemble_vote import EvidenceWeight
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def test_rows_of_a_leaf_that_no_value_reaches_stay_where_they_are():
    protocol = register.make(
        "protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 6, "max_bin": 32})
    )
    setting = FederationConfig.of(DataRef("diabetes"), Spec("iid"), 3, 0, protocol)
    federation = federation_of(setting, None)
    defense = Composition((register.make("defense", Spec("min-bin", {"k": 10})),))
    done = train(protocol, federation.local_data, federation.schema, defense=defense, seed=0)
    view = view_of(done, ("client-0",), federation.local_data)
    attack = register.make("attack", Spec("timberstrike", {"chains": 1}))
    guess = attack.run(view, np.random.default_rng(0))
    assert len(guessed.rows(guess)) > 0
    assert np.isfinite(guessed.rows(guess).X).all()


def evidence_under(defense, principals):
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 3}))
    made = Composition((register.make("defense", defense),))
    view = view_of(
        train(protocol, over_clients(clients), schema, defense=made),
        principals,
        over_clients(clients),
    )
    return view, read_boosting(view)


def test_a_client_who_colludes_counts_once_in_an_opened_sum():
    others = evidence_under(Spec("secure-sum"), ("server", "client-0"))[1]
    alone = evidence_under(Spec("secure-sum"), ("server",))[1]
    own = observe_client_histograms(evidence_under(Spec("split-only"), ("server",))[0])["client-0"]
    for a, b, mine in zip(*(e.observed.histograms for e in (others, alone, own)), strict=True):
        np.testing.assert_array_equal(a.sums + mine.sums, b.sums)
        np.testing.assert_array_equal(a.totals + mine.totals, b.totals)


def test_rounded_sums_do_not_outvote_the_declared_number_of_rows():
    view, evidence = evidence_under(Spec("hist-rounding", {"step": 1.0}), ("client-0",))
    assert evidence.distortion.noise is not None
    attack = register.make("attack", Spec("timberstrike", {"chains": 1}))
    guess = attack.run(view, np.random.default_rng(0))
    assert len(guessed.rows(guess)) == view.n_rows - len(view.rows)


def test_what_own_suppressed_bins_brought_is_what_is_subtracted_and_the_rest_is_doubted():
    seen = {}
    for k in range(len(sample_federation()[0])):
        name = f"client-{k}"
        seen[name] = evidence_under(Spec("min-bin", {"k": 5}), (name,))
    view, evidence = seen.pop("client-0")
    basis = ReconstructionContext.of(evidence, view.rows, view.schema)
    for t, sums in enumerate(basis.sums):
        others = sum(e.observed.own_sums[t] for _, e in seen.values())
        np.testing.assert_allclose(np.stack([sums.g, sums.h], axis=1), others, atol=1e-6)
    exact = evidence_under(Spec("split-only"), ("client-0",))[1]
    assert (
        EvidenceWeight.of(exact, ReconstructionContext.of(exact, view.rows, view.schema), 100).trust
        == 1
    )


def test_doubt_covers_what_suppression_took():
    """What min-bin took of victims' gradients is, on average over leaves, less than is doubted."""
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 3}))
    for k, trust in ((3, 0.5), (5, 0.97)):
        made = Composition((register.make("defense", Spec("min-bin", {"k": k})),))
        run = train(protocol, over_clients(clients), schema, defense=made)
        view = view_of(run, ("client-0",), over_clients(clients))
        evidence = read_boosting(view)
        basis = ReconstructionContext.of(evidence, view.rows, view.schema)
        taken, doubted = [], []
        for t, sums in enumerate(basis.sums):
            leaves, true = run.model.trees[t].leaves, 0.0
            for client in clients[1:]:
                gradient = run.model.first(t).predict(client.X) - client.y
                at = np.searchsorted(leaves, run.model.apply(client.X)[:, t])
                true = true + np.bincount(at, gradient, len(leaves))
            taken += list((sums.g - true) ** 2)
            doubted += list(sums.var_g)
        assert 0 < np.mean(taken) < np.mean(doubted)
        assert 0 < EvidenceWeight.of(evidence, basis, 100).trust < trust
