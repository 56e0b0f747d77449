"""A dishonest sender neither lowers the noise of honest parties nor gets a second answer."""

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tampering import Tampering, tampered

from fedtrees.cli.reference import _below, receiving_parties
from fedtrees.conformance.samples import sample_local_data, sample_table
from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.messages import load_families, names_of_type
from fedtrees.core.party import rules_of
from fedtrees.core.registry import register
from fedtrees.core.secure_sum import ClientAggregator
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.defenses.dp_sgd import clipped
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import CutsRequest, LabelSumsRequest
from fedtrees.protocols.training import train
from fedtrees.trees.boosted.histogram import clip_to_int64, to_fixed

#: Protocols and defenses in which a client or a passive party adds noise, or the arbiter does.
NOISY = [
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "none"),
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "masking[mode=ideal]"),
    ("dp-gbdt[trees=3,max_depth=2,noise=distributed]", "dp-grid-cuts[epsilon=1,cells=8]"),
    ("dp-gbdt[trees=3,max_depth=2,noise=central]", "dp-quantile-cuts[epsilon=1]"),
    ("dp-forest[trees=2,depth=3,noise=distributed]", "none"),
    ("dp-forest[trees=2,depth=3,noise=central]", "secure-sum"),
    ("dp-ebm[max_rounds=3]", "none"),
    ("fedtree-hist[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("fedtree-hist[trees=2,max_depth=2]", "laplace-gradient[epsilon=1]"),
    ("nvflare-hist[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("federboost-h[trees=2,max_depth=2]",
     "dp-grid-cuts[epsilon=1,cells=8]+laplace-hist[epsilon=1]"),
    ("secureboost[trees=2,max_depth=2]", "laplace-hist[epsilon=1]"),
    ("federboost-v[trees=2,max_depth=2,epsilon=1]", "none"),
    ("vertical-regression[rounds=3,statistics=public,bits=24]", "dp-gd[epsilon=1]"),
    ("fedsgd-mlp[rounds=2,units=2,batch=8,statistics=public]", "dp-sgd[epsilon=4]"),
    ("fedavg-mlp[rounds=2,units=2,batch=8]", "gradient-noise[scale=0.1]"),
    ("fedxgbllr[trees=2,max_depth=2,rounds=2,iterations=2,channels=2,batch=8]",
     "dp-sgd[epsilon=4]"),
]  # fmt: skip


def trained(protocol, defense="none", behaviour="", seed=3, watching=None, other_rows=False):
    """Train on the small table, where the coordinator follows a behaviour.

    With `other_rows`, every party has a random sample of its rows, with repetitions.

    If torch or dp-accounting is not installed, constants replace the gradients and the noise
    multiplier. This does not change which requests are answered.
    """
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    if missing := {*protocol_object.missing()} - {"torch"}:
        pytest.skip(f"needs {', '.join(missing)}, of an extra")
    local_data, (_, schema) = sample_local_data(protocol_object), sample_table()
    if other_rows:
        local_data = {name: resampled(data) for name, data in local_data.items()}
    composition = make_defense(parse_composed([defense])[0])
    (coordinator,) = [name for name in protocol_object.roles(3) if name in ("server", "active")]
    behaviours = {coordinator: behaviour} if behaviour else {}
    with ExitStack() as stack:
        if find_spec("torch") is None:
            network = "fedtrees.protocols.networks.network_training"
            stack.enter_context(mock.patch(f"{network}.torch_module"))
            stack.enter_context(mock.patch(f"{network}.initial", lambda layers, rng: zeros(layers)))
            fake = mock.patch(f"{network}.mean_gradient", lambda layers, *rows: zeros(layers))
            stack.enter_context(fake)
            fake = mock.patch(f"{network}.example_gradients", example_gradients)
            stack.enter_context(fake)
        if find_spec("dp_accounting") is None:
            fake = mock.patch("fedtrees.defenses.dp_sgd.multiplier", multiplier)
            stack.enter_context(fake)
        if watching is not None:
            stack.enter_context(watching)
        return train(
            protocol_object,
            local_data,
            schema,
            defense=composition,
            seed=seed,
            noise_from="seed",
            behaviours=behaviours,
        )


def resampled(data):
    rows = np.random.default_rng(len(data)).integers(0, len(data), len(data))
    y = None if data.y is None else data.y[rows]
    return replace(data, X=data.X[rows], y=y)


def multiplier(epsilon, delta, rate, steps):
    return 1.0


def zeros(layers):
    return np.zeros(layers.parameters, np.float32)


def example_gradients(layers, weights, inputs, labels, engine=""):
    return np.zeros((len(inputs), layers.parameters), np.float32)


@pytest.mark.parametrize("behaviour", ["lying-count", "asking-twice"])
@pytest.mark.parametrize(("protocol", "defense"), NOISY)
def test_requests_beyond_the_agreement_are_refused_where_parties_add_noise(
    protocol, defense, behaviour
):
    honest = trained(protocol, defense)
    cheated = trained(protocol, defense, behaviour)

    assert honest.refused == ""
    assert cheated.model is None
    assert re.match(r"\w+(\.\w+=.*)?: .*; the sender must keep to the agreement", cheated.refused)
    # The noisy answers before the refusal are a subset of the honest run's, so they cost no more.
    client_events = [event for event in cheated.transcript.events if event.party != "server"]
    assert all(event in honest.transcript.events for event in client_events)
    assert len(client_events) <= len(honest.transcript.events)


def changed(setting, message_type, replace_message, index=0):
    """Run a setting in which receivers get other messages in place of one message.

    `message_type` is the name of the type of message and `index` its number among messages of this
    type. `replace_message` takes the message and returns the ones that arrive.

    Returns the error that stopped the run, and the recorded draws and answers of honest parties.
    """
    honest = SHARED.honest_run(setting)
    numbers = [
        number
        for number, message in enumerate(honest.handled)
        if type(message).__name__ == message_type
    ]
    return SHARED.recorded(setting, Tampering(numbers[index], replace_message))[::-1]


GBDT, FOREST = "dp-gbdt[trees=2,max_depth=2,noise=distributed]", NOISY[4][0]
HIST = "fedtree-hist[trees=2,max_depth=2,base_score=0.5,early_stopping_rounds=2]"
LAPLACE = "laplace-hist[epsilon=1]"


@pytest.mark.parametrize(
    ("setting", "message_type", "replace_message", "error_message"),
    [
        # Two answers for the leaves of one tree in another order used one stream of noise.
        ((GBDT, "none"), "LeafSumsRequest",
         lambda m: [m, replace(m, nodes=m.nodes[::-1].copy())], "LeafSumsRequest.nodes="),
        # Copies of one leaf would average its noise out.
        ((GBDT, "none"), "LeafSumsRequest",
         lambda m: [replace(m, nodes=np.repeat(m.nodes[:1], len(m.nodes)))],
         "LeafSumsRequest.nodes="),
        # The gradients of the rows in such a leaf are not finite. An error at a party that has such
        # a row would reveal it without noise.
        *(((GBDT, defense), "LeafValues",
           lambda m, x=x: [replace(m, value=np.full_like(m.value, x))], "LeafValues.value=")
          for x in (np.nan, np.inf, -3e38) for defense in ("none", "masking[mode=ideal]")),
        ((HIST, LAPLACE), "LeafValues",
         lambda m: [replace(m, value=np.full_like(m.value, np.nan))], "LeafValues.value="),
        # A client cannot bin by category codes if its values are not codes.
        ((GBDT, "dp-grid-cuts[epsilon=1,cells=8]"), "CutPoints",
         lambda m: [replace(m, categorical=np.ones(len(m.minimum), bool))],
         "CutPoints.categorical="),
        (("fedsgd-mlp[rounds=1,units=2,batch=8,statistics=public]", "dp-sgd[epsilon=4]"),
         "NetworkWeights", lambda m: [replace(m, weights=np.full_like(m.weights, np.inf))],
         "NetworkWeights.weights="),
        # Noise whose standard deviation is far below one unit protects nothing.
        ((GBDT, "none"), "BaseScore", lambda m: [replace(m, g_bits=-30)], "BaseScore.g_bits=-30"),
        # Without a defense of cut points, dp-gbdt uses public cuts and sends no such request.
        ((GBDT, "none"), "CutPoints", lambda m: [CutsRequest("sketch", 32)],
         "settled by 'public'"),
        ((GBDT, "dp-grid-cuts[epsilon=1,cells=8]"), "GridRequest", lambda m: [m, m],
         "GridRequest.round=0: this request was answered before"),
        ((GBDT, "dp-grid-cuts[epsilon=1,cells=8]"), "GridRequest",
         lambda m: [replace(m, borders=m.borders * np.float32(0.5))], "the first grid is public"),
        # The noise scale of each count assumes the agreed number of trees.
        ((FOREST, "none"), "RandomTests",
         lambda m: [replace(m, feature=np.concatenate([m.feature] * 2),
                            threshold=np.concatenate([m.threshold] * 2))], "RandomTests.feature="),
        ((FOREST, "none"), "RandomTests", lambda m: [m, m], "RandomTests: it was answered before"),
        # A sum with fewer shares of noise than agreed.
        ((FOREST, "masking[threshold=2]"), "MaskSurvivors",
         lambda m: [replace(m, parties="client-0,client-1")],
         "3 parties share the noise of that sum"),
        # A finer sketch reveals more values.
        (("fedtree-hist[trees=1,max_bin=4]", LAPLACE), "CutsRequest",
         lambda m: [replace(m, max_bin=255)], "CutsRequest.max_bin=255: max_bin is agreed to be 4"),
        # A second private summary, or an exact summary instead.
        ((NOISY[3][0], "dp-quantile-cuts[epsilon=1]"), "CutsRequest", lambda m: [m, m],
         "CutsRequest: it was answered before"),
        ((NOISY[3][0], "dp-quantile-cuts[epsilon=1]"), "CutsRequest",
         lambda m: [replace(m, method="equal-width")], "CutsRequest.method=equal-width"),
        # Each answer about held-out rows carries fresh noise, and costs as much as the first one.
        ((HIST, LAPLACE), "ValidationRequest", lambda m: [m, m],
         "ValidationRequest.round=0: this request was answered before"),
        # Label sums are exact, and an agreed start needs none.
        ((HIST, LAPLACE), "BaseScore", lambda m: [LabelSumsRequest()],
         "base_score=0.5 needs no label sums"),
        # The secure sum over one participant is its update.
        (("fedavg-mlp[rounds=1,units=2,batch=8]", "secure-sum"), "NetworkWeights",
         lambda m: [replace(m, chosen="client-0")],
         "NetworkWeights.chosen=client-0: 3 of 3 clients take part"),
        # Another round of Poisson sampling is a step more than the accountant counted.
        (("fedsgd-mlp[rounds=1,units=2,batch=8,statistics=public]", "dp-sgd[epsilon=4]"),
         "NetworkWeights", lambda m: [m, replace(m, round=1)], "the agreed numbers are 0 to 0"),
        # Fewer declared binary places make a gradient larger relative to the noise.
        ((NOISY[13][0], "dp-gd[epsilon=1]"), "EncryptedGradient",
         lambda m: [replace(m, bits=m.bits - 20)], "EncryptedGradient.bits="),
        ((NOISY[13][0], "dp-gd[epsilon=1]"), "EncryptedGradient", lambda m: [m, m],
         "EncryptedGradient.round=0: this request was answered before"),
    ],
)  # fmt: skip
def test_a_changed_message_is_refused_by_the_name_of_its_field(
    setting, message_type, replace_message, error_message
):
    error, recorded = changed(setting, message_type, replace_message)
    assert isinstance(error, BeyondParametersError)
    assert error_message in str(error)
    assert not differences(SHARED.honest_run(setting), recorded)


def test_an_error_names_the_value_the_rule_and_the_remedy():
    stopped, _ = changed((GBDT, "none"), "LeafSumsRequest", lambda m: [replace(m, tree=7)])
    assert str(stopped) == (
        "LeafSumsRequest.tree=7: leaves are asked for when all splits of their tree were sent; "
        "the sender must keep to the agreement: compare its parameters, and start a new run"
    )


#: Settings whose messages are tampered with: those above that need no missing module, and settings
#: in which noise is drawn under real or emulated cryptography, or for held-out rows.
TAMPERED = [
    *NOISY,
    ("dp-forest[trees=2,depth=2,noise=distributed]", "masking[mode=ideal]"),
    ("dp-gbdt[trees=2,max_depth=1,noise=distributed]", "paillier[mode=ideal]"),
    ("dp-gbdt[trees=2,max_depth=1,noise=distributed]", "masking[threshold=2]"),
    ("fedtree-hist[trees=2,max_depth=2,base_score=0.5,early_stopping_rounds=2]",
     "laplace-hist[epsilon=1]"),
    ("forest-hist[trees=2,max_depth=2]", "secure-sum"),
    ("horizontal-regression[rounds=2]", "none"),
]  # fmt: skip

#: The most answers of each type that a party gives in a run of these settings.
ALLOWED = {"Histogram": 2 * 2, "OpenedBinSums": 2 * 2, "BinSums": 2 * 2, "GridCounts": 2}


def differences(honest, recorded):
    """List the ways in which the privacy loss of a run differs from that of the honest run."""
    problems = [f"law {channel}" for channel in recorded.laws - honest.laws]
    problems += [f"stream {stream[1:]} opened twice" for stream in recorded.repeated]
    problems += [f"{kind} failed at a party: {err!r}" for kind, err in recorded.failures]
    for (name, kind), answers in recorded.answers.items():
        count, maximum = len(answers), len(honest.answers.get((name, kind), ()))
        maximum = max(maximum, ALLOWED.get(kind, 0) * (kind in honest.sizes))
        if count > maximum:
            problems.append(f"{name} answered {count} times with {kind}; at most {maximum}")
    summaries = ("FeatureSketch", "FeatureRanges")
    problems += [f"{kind} of {recorded.sizes[kind]} numbers" for kind in summaries
              if recorded.sizes.get(kind, 0) > honest.sizes.get(kind, 0)]  # fmt: skip
    return problems


class Campaign:
    """Honest runs of all settings, and runs in which one message is tampered with."""

    def __init__(self):
        self.honest = {}

    def honest_run(self, setting):
        if setting not in self.honest:
            recorded, error = self.recorded(setting)
            assert error is None, (setting, error)
            self.honest[setting] = recorded
        return self.honest[setting]

    def recorded(self, setting, tampering=None, other_rows=False):
        tampering = tampering or Tampering()
        try:
            trained(*setting, watching=tampering.watching(), other_rows=other_rows)
        except Exception as err:  # a refusal, or a failure of the dishonest sender itself
            return tampering.recording, err
        return tampering.recording, None

    def draw(self, number):
        """Tamper with one message of one setting; return the change, error and differences."""
        rng = np.random.default_rng([9, number])
        setting = HERE[rng.integers(len(HERE))]
        honest = self.honest_run(setting)
        kinds = sorted({type(m).__name__ for m in honest.handled})
        message_type = str(rng.choice(kinds))
        position = int(
            rng.choice(
                [i for i, m in enumerate(honest.handled) if type(m).__name__ == message_type]
            )
        )
        messages, description = tampered(honest.handled[position], rng)
        if messages is None:
            return None

        def replace_message(message):
            return replay(message, messages)

        recorded, error = self.recorded(setting, Tampering(position, replace_message))
        if recorded.failures:  # Does the same message fail for other rows, too?
            other_recorded, _ = self.recorded(
                setting, Tampering(position, replace_message), other_rows=True
            )
            # Numbers in the text, such as those of bins, may differ between tables.
            texts = (
                [re.sub(r"\d+", "", str(failure)) for failure in recording.failures]
                for recording in (recorded, other_recorded)
            )
            if len({*map(tuple, texts)}) == 1:
                recorded.failures.clear()
        return f"{setting}: {description}", error, differences(honest, recorded), recorded.crashes


#: Honest runs are recorded once for all tests.
SHARED = Campaign()


def replay(message, arrives):
    """Return the replacements, in which an unchanged message is the message of the current run."""
    return [
        message if replacement is arrives[0] and len(arrives) > 1 else replacement
        for replacement in arrives
    ]


HERE = [s for s in TAMPERED if not s[0].startswith("dp-ebm") or find_spec("interpret")]


def campaign(numbers):
    """Return how many draws changed a message, counts of the errors, and all differences."""
    drawn, refused, problems = 0, Counter(), []
    for number in numbers:
        outcome = SHARED.draw(number)
        if outcome is None:
            continue
        description, error, differs, crashes = outcome
        drawn += 1
        refused[type(error).__name__ if error else "unchanged"] += 1
        problems += [(number, description, difference) for difference in differs]
        problems += [
            (number, description, f"crash at {kind}: {crash!r}") for kind, crash in crashes
        ]
    return drawn, refused, problems


def test_a_hundred_tampered_messages_are_refused_or_leave_the_privacy_loss_unchanged():
    drawn, _, problems = campaign(range(100))
    assert drawn > 80
    assert not problems, problems[:5]


@pytest.mark.slow
def test_two_thousand_tampered_messages_are_refused_or_leave_the_privacy_loss_unchanged():
    drawn, _, problems = campaign(range(2600))
    assert drawn >= 2000
    assert not problems, problems[:5]


def test_every_field_of_every_message_that_a_party_handles_has_a_rule():
    missing = {
        f"{party.__name__}: {message.__name__}.{name}"
        for party in receiving_parties()
        for message in party._handlers
        for name in {*names_of_type(message)} ^ {*rules_of(party).get(message, {})}
    }
    assert not missing


def test_every_message_of_a_secure_sum_that_a_client_answers_has_rules():
    load_families()
    ruled = {(kind, message) for kind in _below(ClientAggregator) for message in kind.rules}
    masks = {"MaskBoxes", "MaskKeysRequest", "MaskRoster", "MaskSurvivors"}
    assert {message.__name__ for _, message in ruled} == masks | {"PaillierKey", "PaillierSeeds"}
    for kind, message in ruled:
        assert {*kind.rules[message]} == {*names_of_type(message)}


def test_gradients_that_are_not_finite_do_not_exceed_the_bound_of_dp_sgd():
    gradients = np.array([[np.nan, 1], [np.inf, 0], [3e38, 3e38], [3, 4]], np.float32)
    norms = np.linalg.norm(clipped(gradients, 1.0), axis=1)
    assert norms.tolist() == pytest.approx([0, 0, 0, 1], abs=1e-6)


@given(
    g=st.floats(width=32),
    h=st.floats(width=32),
    bits=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_every_clipped_gradient_fits_into_fixed_point(g, h, bits):
    units = to_fixed(clip_to_int64(np.array([[g, h]], np.float32), bits), bits)
    ordinary = np.abs([g, h]) < np.ldexp(1.0, 60 - np.array(bits))
    exact = np.rint(np.ldexp(np.array([g, h], np.float64), bits))
    assert (units[0][ordinary] == exact[ordinary]).all()
