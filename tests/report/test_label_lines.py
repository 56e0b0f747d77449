"""Leader lines of labels in a frontier do not cross marks of other defenses."""

import numpy as np
import pytest

from fedtrees.report.figures.inline_svg import Mark, _place_labels
from fedtrees.report.figures.labels import cross_boxes


def crosses(line, box):
    start, end = np.array([line[:2]], dtype=float), np.array([line[2:]], dtype=float)
    return bool(cross_boxes(start, end, np.array([box], dtype=float)).item())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ((0, 0, 10, 10), True),
        ((0, 0, 0, 10), False),
        ((0, 10, 10, 0), True),
        ((0, 0, 4, 3), False),
        ((3, 5, 10, 5), True),
        ((0, 9, 9, 20), False),
    ],
)
def test_a_line_crosses_a_box_only_if_it_passes_it(line, expected):
    assert crosses(line, (4, 4, 6, 6)) is expected


@pytest.mark.parametrize("seed", range(5))
def test_no_line_to_a_label_crosses_the_mark_of_another_defense(seed):
    places = np.random.default_rng(seed).uniform((150, 100), (230, 180), (12, 2))
    marks = [
        Mark(x, y, f"defense-{i}", "abcdefghijkl"[i], "", "", "", names=(f"defense-{i}",))
        for i, (x, y) in enumerate(places.tolist())
    ]
    placed = _place_labels(marks)
    leads = [p.lead for p in placed if p.lead is not None]
    for lead in leads:
        for mark in marks:
            box = (mark.x - 7, mark.y - 7, mark.x + 7, mark.y + 7)
            starts_here = box[0] <= lead[0] <= box[2] and box[1] <= lead[1] <= box[3] + 8
            assert starts_here or not crosses(lead, box)
