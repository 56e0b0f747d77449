"""The study of decisive attacks: its counts, and the table on its page."""

from pathlib import Path

import pandas as pd
import pytest

from fedtrees.benchmarks.papers.ablation import decisive, run

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "ablation.md"


def test_a_score_is_decisive_if_all_other_attacks_and_the_blind_baseline_are_lower():
    lines = [
        ("a", 0.9, 0.5), ("b", 0.7, 0.5), ("c", 0.9, 0.5),  # a tie
        ("a", 0.6, 0.5), ("b", 0.8, 0.5),
        ("a", 0.4, 0.5), ("c", 0.3, 0.5),  # nothing above blind
        ("b", 0.9, 0.2),
    ]  # fmt: skip
    cells = [0, 0, 0, 1, 1, 2, 2, 3]
    scores = pd.DataFrame(lines, columns=["attack", "value", "blind"])
    scores = scores.assign(run="r", metric="ra", cell=cells)
    counts = {name: part[:3] for name, part in decisive(scores).items()}
    assert counts == {"a": (3, 1, 0), "b": (3, 2, 2), "c": (2, 1, 0)}
    assert decisive(scores)["b"][3] == pytest.approx(0.7)


@pytest.mark.long
def test_the_page_contains_the_table_of_the_stored_results():
    (table,) = run(None)
    generated = PAGE.read_text().split("<!-- generated: ablation -->")[1].split("<!-- end -->")[0]
    assert generated.strip() == str(table).split("\n\n", 1)[1].strip()
