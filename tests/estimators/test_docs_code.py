"""The code on the page about estimators runs and gives the results of the page."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to/train.md"


@pytest.mark.long
def test_the_code_of_the_page_gives_the_described_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    assert names["accuracy"] > 0.9
    assert min(names["scores"]) > 0.9
    assert names["sent"] > 0
    assert names["leaf_counts"].score > 0.9 > 0.1 > names["leaf_counts"].blind
    assert names["vertical_accuracy"] > 0.9
    assert len(names["right"]) > 4
    assert all(names["right"])
    assert names["same_there"]
    assert names["same_here"]
    assert sum(names["positives"]) > 200
    assert list(names["positives"]) == names["true_positives"]
