"""The conformance checks accept plug-ins that keep the rules and detect those that break them."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import fedtrees.experiments.federation  # loaded, as it is during a bench
from fedtrees.conformance.attacks import cheated_runs
from fedtrees.conformance.checks import check
from fedtrees.conformance.samples import (
    make_small_protocol,
    sample_training,
    trainable,
    views_that_tell,
    views_without_truth,
)
from fedtrees.core.attack import contenders
from fedtrees.core.composition import Composition
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import PUBLIC
from fedtrees.experiments.explain import BRIEF, limit_size
from fedtrees.protocols.compatibility import KnownFacts, check_attacks

PRIVATE = (
    *("laplace-hist", "laplace-gradient", "dp-grid-cuts", "dp-quantile-cuts"),
    *("lp-1st", "lp-mst", "grafting-ldp", "dp-sgd"),
)
NEEDED = {name: {"epsilon": 4.0} for name in PRIVATE} | {
    "id-lmid": {"xi": 0.1},
    "dp-gd": {"epsilon": 4.0},
    "gradient-noise": {"scale": 0.1},
    "gradient-rounding": {"step": 0.01},
    "top-k": {"share": 0.1},
    # Less effort than the defaults, because the rules do not depend on effort or key length.
    "draft-dp": {"work": 0.001},
    "label-mixture": {"rows": 40},
    "few-shot": {"rows": 40},
    "routed-labels": {"rows": 40},
    "timberstrike": {"chains": 1},
    "joint": {"steps": 500, "chains": 2},
    "lattice": {"steps": 2000},
    "leaf-inversion": {"batches": 1, "restarts": 2, "steps": 20},
}
#: Defenses that take long: real cryptography for one protocol, and ideal sums for all of them.
ONCE = {
    "paillier": [
        (
            Spec("paillier", {"bits": 1024}),
            ["fedtree-hist", "forest-hist", "fedxgbllr[rounds=1,iterations=2,channels=4]"],
        ),
        (Spec("paillier", {"mode": "ideal"}), None),
    ]
}
OWN = {kind: register.names(kind) for kind in ("defense", "attack", "metric")} | {
    "protocol": trainable()
}

#: Attacks that read nothing under default parameters, and where they do.
ELSEWHERE = {
    "leaf-inversion": [["fedxgbllr[trees=3,max_depth=2,rounds=1,batch=4,sends=gradient]"]],
    "regression-inversion": [["vertical-regression[fake=240,rounds=6]"]],
}
# Shorter trainings for the checks of attacks, which suffice as evidence.
SHORT = {
    "fedxgbllr": "fedxgbllr[trees=2,rounds=1]",
    "secureboost": "secureboost[trees=1]",
}
# Extensions that apply to neural networks only.
OF_NETWORKS = {
    "attack": ("network-membership", "tableak"),
    "defense": ("dp-sgd", "gradient-rounding", "top-k"),
}


def extra_marks(kind, name):
    """Return the mark for tests that need torch, for extensions of neural networks."""
    return [pytest.mark.extra("torch")] if name in OF_NETWORKS.get(kind, ()) else []


HEAD = """
from dataclasses import dataclass
import numpy as np
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register
from fedtrees.core.schema import Table

class Cheating(Attack):
    def inapplicable(self, view):
        return "no rows of its own" if view.rows is None else None

def claim_records(rows):
    return Guess((Records(rows),))
"""

CHEATS = {
    "imports": HEAD
    + """
@register.attack("cheat-imports")
class Cheat(Cheating):
    def run(self, view, rng):
        from fedtrees.data import catalogue
        return claim_records(catalogue.load("breast-cancer").table.take(np.arange(5)))
""",
    "frames": HEAD
    + """
import sys
@register.attack("cheat-frames")
class Cheat(Cheating):
    def run(self, view, rng):
        frame = sys._getframe()
        while frame is not None:
            for value in frame.f_locals.values():
                if hasattr(value, "local_data") and value is not view:
                    return claim_records(Table.concat([h.table for h in value.local_data.values()]))
            frame = frame.f_back
        return claim_records(view.rows)
""",
    "memory": HEAD
    + """
import gc
from fedtrees.core.local_data import LocalData
@register.attack("cheat-memory")
class Cheat(Cheating):
    def run(self, view, rng):
        own_rows = view.rows
        tables = [o for o in gc.get_objects() if isinstance(o, LocalData)]
        wide = [h.table for h in tables if h.X.shape[1] == own_rows.X.shape[1]]
        return claim_records(Table.concat([t for t in wide if len(t) < 100]))
""",
    "randomness": HEAD
    + """
@register.attack("cheat-randomness")
class Cheat(Cheating):
    def run(self, view, rng):
        drawn = np.random.default_rng().integers(0, len(view.rows), 50)
        return claim_records(view.rows.take(drawn))
""",
    "modules": HEAD
    + """
import importlib
@register.attack("cheat-modules")
class Cheat(Cheating):
    def run(self, view, rng):
        importlib.import_module("fedtrees.experiments.federation").federation_of
        return claim_records(view.rows)
""",
    "files": HEAD
    + """
@register.attack("cheat-files")
class Cheat(Cheating):
    def run(self, view, rng):
        try:
            open("truth.csv").close()
        except OSError:
            pass
        return claim_records(view.rows)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_attack_is_caught_or_finds_nothing(cheat, tmp_path):
    assert fedtrees.experiments.federation.federation_of
    file = Path(tmp_path) / f"{cheat}.py"
    file.write_text(CHEATS[cheat])
    load_plugin(file)
    findings = check("attack", Spec(f"cheat-{cheat}"), ["fedtree-hist"])
    broken = [finding.rule for finding in findings if not finding.holds]
    expected = {
        "imports": "imports no module with ground truth",
        "randomness": "the same view gives the same guess",
        "files": "opens no file",
        "modules": "no module with truth",
    }.get(cheat)
    if expected is None:  # The data that it looks for are in another process.
        assert len(findings) > 5
        assert broken == []
    else:
        assert any(expected in rule for rule in broken), findings


def test_a_defense_that_does_nothing_is_detected(tmp_path):
    file = tmp_path / "idle.py"
    file.write_text(
        "from fedtrees.defenses.suppression import SplitOnly\n"
        "from fedtrees.core.registry import register\n"
        "from fedtrees.messages.models import BoostedModel\n"
        "@register.defense('leaky-open')\n"
        "class Open(SplitOnly):\n"
        "    def transform_message(self, message, ctx):\n"
        "        return message\n"
        "@register.defense('leaky-idle')\n"
        "class Idle(Open):\n"
        "    permitted_types = {**SplitOnly.permitted_types, BoostedModel: 'a test'}\n"
        "@register.defense('leaky-nowhere')\n"
        "class Nowhere(SplitOnly):\n"
        "    roles = frozenset()\n"
    )
    load_plugin(file)
    idle = [
        finding.rule
        for finding in check("defense", Spec("leaky-idle"), ["fedtree-hist"])
        if not finding.holds
    ]
    assert any("it changes NodeSplits, which it handles" in rule for rule in idle)
    assert "fedtree-hist: it acts on something" in idle
    released = [
        finding.detail
        for finding in check("defense", Spec("leaky-open"), ["fedtree-hist"])
        if not finding.holds
    ]
    assert any("is about to send BoostedModel, which it neither" in detail for detail in released)
    nowhere = [
        finding.rule
        for finding in check("defense", Spec("leaky-nowhere"), ["fedtree-hist"])
        if not finding.holds
    ]
    assert any("it names the roles whose messages it protects" in rule for rule in nowhere)


@pytest.mark.long(but=("-hist", "secureboost", "flower-cyclic", "secure-sum", "id-lmid"))
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=extra_marks(kind, name))
        for kind in ("protocol", "defense")
        for name in OWN[kind]
    ],
)
def test_every_built_in_protocol_and_defense_conforms(kind, name):
    for spec, beside in ONCE.get(name, [(Spec(name, NEEDED.get(name, {})), None)]):
        findings = check(kind, spec, beside)
        assert findings
        assert [f for f in findings if not f.holds] == []


@cache
def families():
    """Group the protocols by the modules that their messages come from."""
    alike = defaultdict(list)
    for name in OWN["protocol"]:
        run, _ = sample_training(register.make("protocol", limit_size(Spec(name), BRIEF)))
        crossed = (d for d in run.transcript if d.receivers != (PUBLIC,))
        alike[frozenset(type(d.message).__module__ for d in crossed)].append(name)
    return list(alike.values())


def spec_of(name):
    return Spec(name, NEEDED.get(name, {}))


@cache
def attacks_that_read(protocol):
    """Return the attacks that read some view of a protocol."""
    readers = set()
    for _, view in views_without_truth([protocol]):
        reasons = check_attacks([spec_of(name) for name in contenders()], KnownFacts(view=view))
        readers |= {name for name, reason in zip(contenders(), reasons, strict=True) if reason.ok}
    for name in contenders():  # attacks for which the adversary knows all attributes except one
        attack = register.make("attack", spec_of(name))
        for _, view in views_that_tell(attack, [protocol]):
            if check_attacks([spec_of(name)], KnownFacts(view=view))[0].ok:
                readers.add(name)
    for name in contenders():  # attacks of a party that cheats
        for behaviour in getattr(register.get("attack", name), "behaviours", ()):
            readers |= {name for _ in cheated_runs(behaviour, [protocol])}
    return readers


@pytest.mark.long
def test_each_family_of_messages_has_its_protocols():
    all_families = [
        {"dp-ebm", "ebm-merge"},
        {"dp-forest", "local-forests"},
        {"dp-gbdt", "federboost-h", "fedtree-hist", "flower-bagging", "flower-cyclic",
         "local-ensembles", "nvflare-hist"},
        {"fedavg-mlp", "fedsgd-mlp"},
        {"federboost-v"},
        {"fedxgbllr"},
        {"forest-hist"},
        {"horizontal-regression"},
        {"lightgbm-data"},
        {"secureboost", "vertical-forest"},
        {"vertical-regression"},
        {"xgboost-ring"},
        {"xgboost-vertical"},
    ]  # fmt: skip
    available_families = [family & {*OWN["protocol"]} for family in all_families]
    assert [set(family) for family in families()] == [
        family for family in available_families if family
    ]


def test_the_attack_cl_conforms_if_parties_have_columns():
    load_plugin(Path(__file__).parents[2] / "docs" / "examples" / "plain_vertical.py")
    findings = check("attack", Spec("cl"), ["plain-vertical"])
    assert findings[-1].holds
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=extra_marks("attack", name)) for name in contenders()]
)
def test_every_built_in_attack_conforms(name):
    """Check the first protocol of each family that it reads; a slow test checks all of them."""
    for family in [*ELSEWHERE.get(name, ()), *families()]:
        first = next(
            (
                protocol
                for protocol in family
                if name in attacks_that_read(SHORT.get(protocol, protocol))
            ),
            None,
        )
        if first is not None:
            *findings, last_finding = check("attack", spec_of(name), [SHORT.get(first, first)])
            assert last_finding.holds
            assert len(findings) > 1
            assert [finding for finding in findings if not finding.holds] == []
            return
    raise AssertionError("no protocol has anything for it")


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN["attack"])
def test_every_built_in_attack_conforms_with_every_protocol(name):
    assert [finding for finding in check("attack", Spec(name)) if not finding.holds] == []


def test_a_defense_that_forgets_a_message_is_caught(tmp_path):
    file = tmp_path / "leaky.py"
    file.write_text(
        "from dataclasses import dataclass, replace\n"
        "from fedtrees.core.defense import Defense\n"
        "from fedtrees.core.messages import Reveal\n"
        "from fedtrees.core.registry import register\n"
        "from fedtrees.messages.horizontal import NodeSplits\n"
        "@register.defense('leaky-split-only')\n"
        "@dataclass(frozen=True)\n"
        "class Leaky(Defense):\n"
        "    roles = frozenset({'server'})\n"
        "    protects = frozenset({Reveal.LABELS})\n"
        "    handled_types = (NodeSplits,)\n"
        "    def transform_message(self, message, ctx):\n"
        "        return replace(message, g=None, h=None, gain=None)\n"
    )
    load_plugin(file)
    findings = check("defense", Spec("leaky-split-only"), ["fedtree-hist"])
    broken = [f for f in findings if not f.holds]
    assert broken
    assert "BaseScore" in broken[0].detail or "LeafValues" in broken[0].detail


def test_declarations_of_a_protocol_are_compared_with_a_run(tmp_path):
    file = tmp_path / "boastful.py"
    file.write_text(
        "from dataclasses import dataclass, replace\n"
        "from fedtrees.core.registry import register\n"
        "from fedtrees.messages.horizontal import Histogram\n"
        "from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging\n"
        "@register.protocol('boastful')\n"
        "@dataclass(frozen=True)\n"
        "class Boastful(FlowerBagging):\n"
        "    info = replace(FlowerBagging.info,\n"
        "        message_types=(*FlowerBagging.info.message_types, Histogram),\n"
        "        capabilities=frozenset({'transform_examples', 'gradient_clip'}))\n"
    )
    load_plugin(file)
    broken = {
        finding.rule: finding.detail
        for finding in check("protocol", Spec("boastful"))
        if not finding.holds
    }
    assert set(broken) == {
        "all declared types are sent, or are in `conditional_types` (`message_types`)",
        "its parties comply with transform_examples (`capabilities`), or state a reason",
        "its parties comply with gradient_clip (`capabilities`), or state a reason",
    }
    assert (
        "Histogram"
        in broken["all declared types are sent, or are in `conditional_types` (`message_types`)"]
    )


BAD_METRIC = """
import itertools

from fedtrees.core.results import Measure
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Score
from fedtrees.metrics.victims_rows import RecordMetric

count = itertools.count()


class Bad(RecordMetric):
    measures = (Measure("bad_score", "a bad score"),)
    main = ()


@register.metric("bad-undeclared")
class Undeclared(Bad):
    def score(self, claims, truth):
        return [Score("bad_scores", 0.5)]


@register.metric("bad-nan")
class NotANumber(Bad):
    measures = (Measure("nan_score", "a score that is not a number"),)

    def score(self, claims, truth):
        return [Score("nan_score", float("nan"))]


@register.metric("bad-changing")
class Changing(Bad):
    measures = (Measure("changing_score", "a score that changes"),)

    def score(self, claims, truth):
        return [Score("changing_score", float(next(count)))]


@register.metric("bad-error")
class Error(Bad):
    measures = (Measure("error_score", "a score that is never computed"),)

    def score(self, claims, truth):
        raise KeyError("column")
"""


@pytest.mark.parametrize(
    ("name", "rule", "detail"),
    [
        ("undeclared", "scores of the blind guess .* are declared numbers", "declare a Measure"),
        ("nan", "scores of the blind guess .* are declared numbers", "is not a number; return Non"),
        ("changing", "the blind guess .* is scored alike twice", ""),
        ("error", "its methods can be called", "KeyError: 'column'"),
    ],
)
def test_a_metric_that_breaks_the_rules_is_detected(tmp_path, monkeypatch, name, rule, detail):
    # Restore the registry, because later tests score all registered metrics.
    monkeypatch.setitem(register._known, "metric", dict(register._known["metric"]))
    monkeypatch.setattr(register, "_origin", dict(register._origin))
    file = tmp_path / "bad_metrics.py"
    file.write_text(BAD_METRIC + f"# {name}")
    load_plugin(file)
    broken = [
        finding
        for finding in check("metric", Spec(f"bad-{name}"), ["fedtree-hist"])
        if not finding.holds
    ]
    assert broken
    assert all(re.search(rule, finding.rule) and detail in finding.detail for finding in broken)


@pytest.mark.long
@pytest.mark.parametrize("name", OWN["metric"])
def test_every_built_in_metric_conforms(name):
    protocols = ["fedtree-hist", "secureboost", "federboost-v", "dp-forest", "flower-bagging"]
    assert [f for f in check("metric", Spec(name), protocols) if not f.holds] == []


FALSE_CLAIM = """
from dataclasses import dataclass
from fedtrees import ChannelDefense, PureDP, register
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.messages.horizontal import LeafValues

@register.defense("false-epsilon")
@dataclass(frozen=True)
class FalseEpsilon(ChannelDefense):
    roles = frozenset({"server"})
    handled_types = (LeafValues,)

    def claim(self):
        return PureDP(1.0)

    def channels(self, schema, parameters):
        return {(LeafValues, "g"): Rounding(4.0)}

@register.defense("misspelt-field")
@dataclass(frozen=True)
class MisspeltField(FalseEpsilon):
    def channels(self, schema, parameters):
        return {(LeafValues, "gradient"): Rounding(4.0)}

@register.defense("misspelt-hook")
@dataclass(frozen=True)
class MisspeltHook(ChannelDefense):
    roles = frozenset({"server"})
    handled_types = (LeafValues,)

    def tranform_message(self, message, ctx):
        return message
"""


def failures(kind, name, protocols=("fedtree-hist",)):
    """Return the detail of each broken rule."""
    return {f.rule: f.detail for f in check(kind, Spec(name), protocols) if not f.holds}


@pytest.fixture
def false_claims(tmp_path):
    file = tmp_path / "false_claims.py"
    file.write_text(FALSE_CLAIM)
    load_plugin(file)


def test_an_epsilon_without_recorded_noise_is_refused(false_claims):
    broken = failures("defense", "false-epsilon")
    rule = "fedtree-hist: its epsilon follows from recorded releases"
    assert [*broken] == [rule]
    assert "recorded no noisy release" in broken[rule]
    run, _ = sample_training(
        make_small_protocol("fedtree-hist"),
        Composition((register.make("defense", Spec("false-epsilon")),)),
    )
    assert run.epsilons == ()  # the composition of no release would be an epsilon of 0


def test_a_misspelt_field_and_a_misspelt_hook_are_named(false_claims):
    broken = failures("defense", "misspelt-field")
    assert broken["fedtree-hist: it trains"] == (
        "'misspelt-field' states a channel for LeafValues.gradient, but the fields of LeafValues "
        "are tree, nodes, value, g, h"
    )
    assert "it runs with at least one protocol" in broken
    detail = failures("defense", "misspelt-hook")["fedtree-hist: it acts on something"]
    assert detail.endswith("did you mean transform_message instead of tranform_message?")


def test_the_check_states_why_a_defense_fits_no_protocol(false_claims):
    assert failures("defense", "false-epsilon", ["forest-hist"]) == {
        "it runs with at least one protocol": "forest-hist: 'false-epsilon' changes messages of "
        "the types LeafValues, which 'forest-hist' does not send"
    }


FAILING = {
    "attack": """
from fedtrees import Attack, LeafCounts, register

@register.attack("failing-attack")
class FailingAttack(Attack):
    claims = (LeafCounts,)

    def run(self, view, rng):
        return {}["attack"]
""",
    "metric": """
from fedtrees import Measure, register
from fedtrees.metrics.victims_rows import RecordMetric

@register.metric("failing-metric")
class FailingMetric(RecordMetric):
    measures = (Measure("failing", "a score that fails"),)
    main = ("failing",)

    def score(self, claims, truth):
        return {}["metric"]
""",
    "protocol": """
from dataclasses import dataclass
from fedtrees import register
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist

class FailingServer(FedTreeHist.party_types["server"]):
    def train(self, net):
        return {}["protocol"]

@register.protocol("failing-protocol")
@dataclass(frozen=True, kw_only=True)
class FailingProtocol(FedTreeHist):
    party_types = {**FedTreeHist.party_types, "server": FailingServer}
""",
}


@pytest.mark.parametrize("kind", FAILING)
def test_an_error_of_a_plug_in_names_its_line(kind, tmp_path):
    file = tmp_path / "failing.py"
    file.write_text(FAILING[kind])
    load_plugin(file)
    details = [*failures(kind, f"failing-{kind}").values()]
    line = FAILING[kind].split("\n").index(f'        return {{}}["{kind}"]') + 1
    assert details
    for detail in details:
        assert f'(failing.py, line {line}: return {{}}["{kind}"])' in detail
