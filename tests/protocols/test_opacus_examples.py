"""The examples with opacus run, and the audit of an outside training notices missing noise."""

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtrees.cli.main import app

pytestmark = [
    pytest.mark.extra("opacus"),
    pytest.mark.extra("torch"),
    pytest.mark.extra("dp_accounting"),
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "opacus"
MEASURE = [
    "measure", "opacus-training", "--plugin", str(EXAMPLES / "audit_opacus.py"), "--format", "json",
]  # fmt: skip


def test_the_outside_training_uses_no_code_of_ours():
    text = (EXAMPLES / "train_opacus.py").read_text()
    assert "fedtrees" not in text.partition('"""\n')[2]
    assert "PrivacyEngine" in text


def test_an_outside_training_with_enough_noise_is_not_refuted():
    done = CliRunner().invoke(app, [*MEASURE, "--runs", "2"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert found["claimed"] == "approximate-dp[epsilon=4,delta=1e-05,unprotected=rows]"
    assert found["spent"].startswith("approximate-dp[epsilon=3.99")
    assert not found["refuted"]
    shown = float(found["measured"].split()[2].strip(","))
    assert 0.3 < shown < 4


def test_an_outside_training_with_a_sixteenth_of_the_noise_is_refuted(monkeypatch):
    from opacus import PrivacyEngine

    make = PrivacyEngine.make_private_with_epsilon

    def with_little_noise(self, **options):
        module, optimizer, loader = make(self, **options)
        optimizer.noise_multiplier /= 16
        return module, optimizer, loader

    monkeypatch.setattr(PrivacyEngine, "make_private_with_epsilon", with_little_noise)
    # Opacus computes its epsilon from the multiplier of the optimizer. The report of the owner
    # states what was asked for.
    monkeypatch.setattr(PrivacyEngine, "get_epsilon", lambda self, delta: 4.0)
    done = CliRunner().invoke(app, [*MEASURE, "--runs", "2"])
    assert done.exit_code == 4, done.output
    (found,) = json.loads(done.stdout)
    assert found["refuted"]
    assert "the audit contradicts it" in found["reading"]


def test_clients_with_opacus_train_as_well_as_with_the_default(capsys):
    found = runpy.run_path(str(EXAMPLES / "federated_opacus.py"))
    assert min(found["auc"].values()) > 0.85
    assert abs(found["auc"]["torch"] - found["auc"]["opacus"]) < 0.05
    assert found["spent"]["torch"].epsilon == found["spent"]["opacus"].epsilon
    assert found["spent"]["torch"].prv == 0 < found["spent"]["opacus"].prv
    printed = capsys.readouterr().out
    assert "by the accountants of opacus" in printed
