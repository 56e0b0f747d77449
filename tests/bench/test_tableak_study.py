"""Table 1 of TabLeak: each published attack is measured on its batches, and a run continues."""

from fedtrees.benchmarks.papers import tableak
from fedtrees.benchmarks.papers.comparisons import read_published


class CountedReference:
    """A reference whose inversions are counted instead of computed."""

    def __init__(self):
        self.inversions = []

    def score_inversion(self, size, which, true):
        self.inversions.append(("tableak", size, which, true))
        return 90.0 + which, 1.0

    def as_published(self, size, which, settings, true):
        self.inversions.append((settings, size, which, true))
        return 80.0 + which, 2.0

    def blind(self, size, which):
        return 60.0


def test_every_value_is_measured_once_and_an_interrupted_study_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(tableak, "find_spec", lambda name: True)
    reference, path = CountedReference(), tmp_path / "accuracies.csv"
    first = list(tableak.accuracies(reference, 1, path))
    assert len(reference.inversions) == len(first) == len(read_published("tableak")) == 14
    assert {c.blind for c in first} == {60.0}
    cosine = [i for i in reference.inversions if i[0] == (False, True, 1, 1500)]
    assert len(cosine) == 5
    assert sum(true for *_, true in cosine) == 3
    by_setting = {c.setting: c for c in tableak.accuracies(reference, 2, path)}
    assert len(reference.inversions) == 28
    c = by_setting["32 rows, labels known, tableak no softmax"]
    assert (c.measured, c.seeds) == (80.5, 2)
    assert by_setting["8 rows, labels inferred, tableak"].measured == 90.5


def test_without_torch_only_our_attack_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(tableak, "find_spec", lambda name: None)
    values = list(tableak.accuracies(CountedReference(), 1, tmp_path / "accuracies.csv"))
    assert {c.setting.rpartition(", ")[2] for c in values if c.seeds} == {"tableak"}
    assert all(c.status == "not run" for c in values if not c.seeds)
