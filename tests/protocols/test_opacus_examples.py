"""The opacus examples run, and the audit of an external training detects missing noise."""

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


def test_the_external_training_does_not_import_fedtrees():
    text = (EXAMPLES / "train_opacus.py").read_text()
    assert "fedtrees" not in text.partition('"""\n')[2]
    assert "PrivacyEngine" in text


def test_an_external_training_with_enough_noise_is_not_refuted():
    result = CliRunner().invoke(app, [*MEASURE, "--runs", "2"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["claimed"] == "approximate-dp[epsilon=4,delta=1e-05,unprotected=rows]"
    assert row["spent"].startswith("approximate-dp[epsilon=3.99")
    assert not row["refuted"]
    measured_epsilon = float(row["measured"].split()[2].strip(","))
    assert 0.3 < measured_epsilon < 4


def test_an_external_training_with_a_sixteenth_of_the_noise_is_refuted(monkeypatch):
    from opacus import PrivacyEngine

    make_private = PrivacyEngine.make_private_with_epsilon

    def with_little_noise(self, **options):
        module, optimizer, loader = make_private(self, **options)
        optimizer.noise_multiplier /= 16
        return module, optimizer, loader

    monkeypatch.setattr(PrivacyEngine, "make_private_with_epsilon", with_little_noise)
    # Opacus computes its epsilon from the multiplier of the optimizer, so the patched method
    # returns the epsilon that the owner requested and reports.
    monkeypatch.setattr(PrivacyEngine, "get_epsilon", lambda self, delta: 4.0)
    result = CliRunner().invoke(app, [*MEASURE, "--runs", "2"])
    assert result.exit_code == 4, result.output
    (row,) = json.loads(result.stdout)
    assert row["refuted"]
    assert "the audit contradicts it" in row["reading"]


def test_clients_with_opacus_train_as_well_as_with_the_default(capsys):
    example = runpy.run_path(str(EXAMPLES / "federated_opacus.py"))
    assert min(example["auc"].values()) > 0.85
    assert abs(example["auc"]["torch"] - example["auc"]["opacus"]) < 0.05
    assert example["spent"]["torch"].epsilon == example["spent"]["opacus"].epsilon
    assert example["spent"]["torch"].prv == 0 < example["spent"]["opacus"].prv
    printed = capsys.readouterr().out
    assert "by the accountants of opacus" in printed
