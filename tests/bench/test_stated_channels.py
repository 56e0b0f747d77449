"""`fedtrees plugin check` compares what a defense or a protocol does with what it states."""

import pytest

from fedtrees.conformance.checks import check
from fedtrees.core.registry import load_plugin
from fedtrees.core.specs import Spec

HEAD = """
from dataclasses import dataclass, replace
import numpy as np
from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.defense import Defense
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.messages.horizontal import Histogram
from fedtrees.privacy.noise import Laplace

class Additive(Rounding):
    additive = True

class Coarse(Defense):
    guarantee = Structural()
    roles = frozenset({"client"})
    handled_types = (Histogram,)
    law = Rounding(0.2)
    def transform_message(self, message, ctx):
        law = self.law.in_units_of(*message.unit_of("sums"))
        rng = ctx.rng("mine")
        made = {f: law.send(getattr(message, f), rng) for f in ('sums', 'totals')}
        return replace(message, **made)
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


def checked(tmp_path, name, stated, law, more=""):
    told = "{}" if stated is None else f"dict.fromkeys(FIELDS, {stated})"
    file = tmp_path / f"{name}.py"
    file.write_text(
        f"{HEAD}\n"
        "FIELDS = [(Histogram, 'sums'), (Histogram, 'totals')]\n"
        f"@register.defense('coarse-{name}')\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Coarse):\n"
        f"    law = {law}\n"
        "    def channels(self, schema, parameters):\n"
        f"        return {told}\n"
        f"    {more}\n"
    )
    load_plugin(file)
    findings = check("defense", Spec(f"coarse-{name}"), ["fedtree-hist"])
    return [f for f in findings if not f.holds], findings


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_channel_fails_and_names_the_field(how, tmp_path):
    stated, law, said = WRONG[how]
    broken, _ = checked(tmp_path, how, stated, law)
    assert broken
    assert all("follows the stated channel (`channels`)" in f.rule for f in broken)
    assert any("Histogram.sums" in f.rule and said in f.detail for f in broken), broken


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("right", "Rounding(0.2)"),
        ("drawn", "Rounding(0.2, random=True)"),
        ("noisy", "Laplace(1.0)"),
    ],
)
def test_a_right_one_passes(name, law, tmp_path):
    broken, findings = checked(tmp_path, name, law, law)
    assert broken == []
    assert sum("`channels`" in f.rule for f in findings) == 3


@pytest.mark.parametrize(
    ("name", "law", "farther"),
    [("shifting", "Laplace(1.0)", False), ("jumping", ROUNDING, True)],
)
def test_what_says_that_it_brings_no_tables_farther_apart_is_held_to_it(
    name, law, farther, tmp_path
):
    broken, findings = checked(tmp_path, name, law, law, "nonexpansive = (Histogram,)")
    asked = [f for f in findings if "(`nonexpansive`)" in f.rule]
    assert [f.holds for f in asked] == [not farther] * 2
    assert broken == [f for f in asked if farther]
    assert all("apart before" in f.detail for f in broken)


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
        "        told = super().noise_channels(schema)\n"
        "        if self.noisy:\n"
        "            told[LeafValues, 'g'] = Gaussian(told[LeafValues, 'g'].scale / 2)\n"
        "        return told",
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
    "no exact twin": (*FOREST, "without_noise = lambda self: None", "(`without_noise`)"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", WRONG_LAWS)
def test_a_wrong_law_of_a_protocol_fails_and_names_the_field(how, tmp_path):
    base, kind, change, said = WRONG_LAWS[how]
    file = tmp_path / "wrong.py"
    file.write_text(PROTOCOL.format(base=base, kind=kind, change=change))
    load_plugin(file)
    broken = [f for f in check("protocol", Spec("wrong-law")) if not f.holds]
    assert [f"{f.rule} {f.detail}" for f in broken if said in f"{f.rule} {f.detail}"], broken
    assert len(broken) == 1


@pytest.mark.long(but=("central-dp-forest",))
@pytest.mark.parametrize("name", ["dp-gbdt", "dp-forest"])
@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_right_laws_pass(name, noise):
    findings = check("protocol", Spec(name, {"noise": noise}))
    assert [f for f in findings if not f.holds] == []
    stated = 1 + (name == "dp-gbdt") + (noise == "distributed")
    assert sum("is the stated noise (`noise_channels`)" in f.rule for f in findings) == stated
