"""TimberStrike with sums that are suppressed or rounded, or that include a colluding client."""

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


def test_rows_of_an_unreachable_leaf_are_not_moved():
    protocol = register.make(
        "protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 6, "max_bin": 32})
    )
    setting = FederationConfig.of(DataRef("diabetes"), Spec("iid"), 3, 0, protocol)
    federation = federation_of(setting, None)
    defense = Composition((register.make("defense", Spec("min-bin", {"k": 10})),))
    training = train(protocol, federation.local_data, federation.schema, defense=defense, seed=0)
    view = view_of(training, ("client-0",), federation.local_data)
    attack = register.make("attack", Spec("timberstrike", {"chains": 1}))
    guess = attack.run(view, np.random.default_rng(0))
    assert len(guessed.rows(guess)) > 0
    assert np.isfinite(guessed.rows(guess).X).all()


def evidence_under(defense, principals):
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 3}))
    defense_of_run = Composition((register.make("defense", defense),))
    view = view_of(
        train(protocol, over_clients(clients), schema, defense=defense_of_run),
        principals,
        over_clients(clients),
    )
    return view, read_boosting(view)


def test_a_colluding_client_is_subtracted_once_from_a_decrypted_sum():
    colluding_evidence = evidence_under(Spec("secure-sum"), ("server", "client-0"))[1]
    server_evidence = evidence_under(Spec("secure-sum"), ("server",))[1]
    client_evidence = observe_client_histograms(evidence_under(Spec("split-only"), ("server",))[0])[
        "client-0"
    ]
    for without_client, total, client_sums in zip(
        *(
            evidence.observed.histograms
            for evidence in (colluding_evidence, server_evidence, client_evidence)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(without_client.sums + client_sums.sums, total.sums)
        np.testing.assert_array_equal(without_client.totals + client_sums.totals, total.totals)


def test_the_declared_number_of_rows_takes_precedence_over_rounded_sums():
    view, evidence = evidence_under(Spec("hist-rounding", {"step": 1.0}), ("client-0",))
    assert evidence.distortion.noise is not None
    attack = register.make("attack", Spec("timberstrike", {"chains": 1}))
    guess = attack.run(view, np.random.default_rng(0))
    assert len(guessed.rows(guess)) == view.n_rows - len(view.rows)


def test_the_sent_part_of_suppressed_bins_is_subtracted():
    evidence_by_client = {}
    for k in range(len(sample_federation()[0])):
        name = f"client-{k}"
        evidence_by_client[name] = evidence_under(Spec("min-bin", {"k": 5}), (name,))
    view, evidence = evidence_by_client.pop("client-0")
    context = ReconstructionContext.of(evidence, view.rows, view.schema)
    for t, sums in enumerate(context.sums):
        other_sums = sum(
            one_evidence.observed.own_sums[t] for _, one_evidence in evidence_by_client.values()
        )
        np.testing.assert_allclose(np.stack([sums.g, sums.h], axis=1), other_sums, atol=1e-6)
    exact = evidence_under(Spec("split-only"), ("client-0",))[1]
    assert (
        EvidenceWeight.of(exact, ReconstructionContext.of(exact, view.rows, view.schema), 100).trust
        == 1
    )


def test_the_variance_covers_the_loss_by_suppression():
    """The squared loss by min-bin is, on average over leaves, smaller than the declared
    variance.
    """
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 3, "max_depth": 3}))
    for k, trust in ((3, 0.5), (5, 0.97)):
        defense_of_run = Composition((register.make("defense", Spec("min-bin", {"k": k})),))
        run = train(protocol, over_clients(clients), schema, defense=defense_of_run)
        view = view_of(run, ("client-0",), over_clients(clients))
        evidence = read_boosting(view)
        context = ReconstructionContext.of(evidence, view.rows, view.schema)
        squared_losses, variances = [], []
        for t, sums in enumerate(context.sums):
            leaves, true_sum = run.model.trees[t].leaves, 0.0
            for client in clients[1:]:
                gradient = run.model.first(t).predict(client.X) - client.y
                leaf_index = np.searchsorted(leaves, run.model.apply(client.X)[:, t])
                true_sum = true_sum + np.bincount(leaf_index, gradient, len(leaves))
            squared_losses += list((sums.g - true_sum) ** 2)
            variances += list(sums.var_g)
        assert 0 < np.mean(squared_losses) < np.mean(variances)
        assert 0 < EvidenceWeight.of(evidence, context, 100).trust < trust
