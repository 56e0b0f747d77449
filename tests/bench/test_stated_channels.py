"""`fedtrees plugin check` compares declared noise with the noise that is drawn."""

import pytest

from fedtrees.conformance.checks import check
from fedtrees.core.registry import load_plugin
from fedtrees.core.specs import Spec

HEAD = """
from dataclasses import dataclass, replace
import numpy as np
from fedtrees.core.channel import Channel, ConditionalOmission
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import Histogram
from fedtrees.privacy.noise import Laplace

class Additive(Rounding):
    additive = True

class Unbounded(Rounding):
    preimage = Channel.preimage
    posterior_moments = Channel.posterior_moments

class Coarse(Defense):
    guarantee = Structural()
    roles = frozenset({"client"})
    handled_types = (Histogram,)
    law = Rounding(0.2)
    def transform_message(self, message, ctx):
        law = self.law.in_units_of(*message.unit_of("sums"))
        rng = ctx.rng("mine")
        noisy = {f: law.send(getattr(message, f), rng) for f in ('sums', 'totals')}
        return replace(message, **noisy)
"""

ROUNDING = "Rounding(0.2)"
WRONG = {
    "step": ("Rounding(0.1)", ROUNDING, "is outside of the interval"),
    "coarser": ("Rounding(0.4)", ROUNDING, "is outside of the interval"),
    "additive": ("Additive(0.2)", ROUNDING, "the channel is declared as additive"),
    "missing": (None, ROUNDING, "the field is changed, and no channel is stated"),
    "scale": ("Laplace(1.0)", "Laplace(0.8)", "are not distributed as the channel states"),
    "noise": ("Laplace(1.0)", ROUNDING, "are not distributed as the channel states"),
}


def check_defense(tmp_path, name, declared, law, more_lines=""):
    channels_text = "{}" if declared is None else f"dict.fromkeys(FIELDS, {declared})"
    file = tmp_path / f"{name}.py"
    file.write_text(
        f"{HEAD}\n"
        "FIELDS = [(Histogram, 'sums'), (Histogram, 'totals')]\n"
        f"@register.defense('coarse-{name}')\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Coarse):\n"
        f"    law = {law}\n"
        "    def channels(self, schema, parameters):\n"
        f"        return {channels_text}\n"
        f"    {more_lines}\n"
    )
    load_plugin(file)
    findings = check("defense", Spec(f"coarse-{name}"), ["fedtree-hist"])
    return [finding for finding in findings if not finding.holds], findings


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_channel_fails_and_names_the_field(case, tmp_path):
    declared, law, detail = WRONG[case]
    broken, _ = check_defense(tmp_path, case, declared, law)
    assert broken
    assert all("follows the stated channel (`channels`)" in finding.rule for finding in broken)
    assert any(
        "Histogram.sums" in finding.rule and detail in finding.detail for finding in broken
    ), broken


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("right", "Rounding(0.2)"),
        ("drawn", "Rounding(0.2, random=True)"),
        ("noisy", "Laplace(1.0)"),
    ],
)
def test_a_correct_channel_passes(name, law, tmp_path):
    broken, findings = check_defense(tmp_path, name, law, law)
    assert broken == []
    assert sum("`channels`" in f.rule for f in findings) == 3


@pytest.mark.parametrize(
    ("name", "law", "noted"),
    [
        ("bounded", ROUNDING, 0),
        ("unbounded", "Unbounded(0.2)", 2),
        ("additive-noise", "Laplace(1.0)", 0),
    ],
)
def test_a_channel_without_bounds_passes_with_a_note(name, law, noted, tmp_path):
    broken, findings = check_defense(tmp_path, name, law, law)
    notes = [f.detail for f in findings if "`preimage`" in f.rule]
    assert broken == []
    assert len(notes) == noted
    assert all("may underestimate the leak" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "law", "farther"),
    [("shifting", "Laplace(1.0)", False), ("jumping", ROUNDING, True)],
)
def test_a_declared_nonexpansive_defense_is_checked(name, law, farther, tmp_path):
    broken, findings = check_defense(tmp_path, name, law, law, "nonexpansive = (Histogram,)")
    checks = [finding for finding in findings if "(`nonexpansive`)" in finding.rule]
    assert [finding.holds for finding in checks] == [not farther] * 2
    assert broken == [finding for finding in checks if farther]
    assert all("apart before" in finding.detail for finding in broken)


PROTOCOL = """
from dataclasses import dataclass
from fedtrees.core.channel import Share
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import LeafValues
from fedtrees.messages.forests import PrivateForest
from fedtrees.privacy.noise import Gaussian
from fedtrees.protocols.{base} import {kind}

@register.protocol("wrong-law")
@dataclass(frozen=True, kw_only=True)
class Wrong({kind}):
    {change}
"""
GBDT, FOREST = ("horizontal.dp_gbdt", "DPGBDT"), ("forests.dp_forest", "DPForest")
WRONG_LAWS = {
    "scale": (
        *GBDT,
        "def noise_channels(self, schema):\n"
        "        channels = super().noise_channels(schema)\n"
        "        if self.noisy:\n"
        "            channels[LeafValues, 'g'] = Gaussian(channels[LeafValues, 'g'].scale / 2)\n"
        "        return channels",
        "LeafValues.g",
    ),
    "kind": (
        *FOREST,
        "def noise_channels(self, schema):\n"
        "        law = Gaussian(1.4 * self.scale) if self.noisy else None\n"
        "        return {(PrivateForest, 'counts'): law} if law else {}",
        "PrivateForest.counts",
    ),
    "none": (*FOREST, "noise_channels = lambda self, schema: {}", "pure-dp[epsilon=1"),
    "incomplete": (
        *GBDT,
        "def noise_channels(self, schema):\n"
        "        channels = super().noise_channels(schema)\n"
        "        return {place: law for place, law in channels.items() if place[1] != 'h'}",
        "by stated channels only (`noise_channels`) LeafValues.h",
    ),
    "no exact twin": (*FOREST, "without_noise = lambda self: None", "(`without_noise`)"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", WRONG_LAWS)
def test_a_wrong_noise_channel_of_a_protocol_fails_and_names_the_field(case, tmp_path):
    base, kind, change, detail = WRONG_LAWS[case]
    file = tmp_path / "wrong.py"
    file.write_text(PROTOCOL.format(base=base, kind=kind, change=change))
    load_plugin(file)
    broken = [finding for finding in check("protocol", Spec("wrong-law")) if not finding.holds]
    assert [
        f"{finding.rule} {finding.detail}"
        for finding in broken
        if detail in f"{finding.rule} {finding.detail}"
    ], broken
    assert len(broken) == 1


@pytest.mark.long(but=("central-dp-forest",))
@pytest.mark.parametrize("name", ["dp-gbdt", "dp-forest"])
@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_correct_noise_channels_pass(name, noise):
    findings = check("protocol", Spec(name, {"noise": noise}))
    assert [finding for finding in findings if not finding.holds] == []
    n_declared = 1 + (name == "dp-gbdt") + (noise == "distributed")
    assert (
        sum("is the stated noise (`noise_channels`)" in finding.rule for finding in findings)
        == n_declared
    )


ROUNDING = """
from dataclasses import dataclass, replace
import numpy as np
from fedtrees import handles, register
from fedtrees.messages.horizontal import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.histogram_parties import HistogramClient
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist

class RoundingClient(HistogramClient):
    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Histogram:
        exact, unit = super().histogram(message), 2.0**30
        rounded = np.rint(np.round(exact.sums / unit, {decimals}) * unit)
        return replace(exact, sums=rounded.astype(np.int64))

@register.protocol("rounding-hist")
@dataclass(frozen=True, kw_only=True)
class RoundingHist(FedTreeHist):
    party_types = {{**FedTreeHist.party_types, "client": RoundingClient}}
"""


@pytest.mark.parametrize(("decimals", "step"), [(1, "0.1"), (3, "0.001"), (12, "")])
def test_rounding_that_a_protocol_does_not_state_is_noted(decimals, step, tmp_path):
    file = tmp_path / "rounding.py"
    file.write_text(ROUNDING.format(decimals=decimals))
    load_plugin(file)
    notes = {
        finding.rule: finding.detail
        for finding in check("protocol", Spec("rounding-hist"))
        if "if it rounds" in finding.rule
    }
    if not step:  # the precision of the fixed-point numbers
        assert notes == {}
        return
    assert "it states the rounding of Histogram.sums, if it rounds (`noise_channels`)" in notes
    assert all(f"multiples of {step} and" in note for note in notes.values())
