"""Scores, each beside what an adversary gets who never looked.

It may import `messages` and below; the guesses of those are in `fedtrees.guessing`.
"""

from fedtrees.metrics.advantage import advantage
from fedtrees.metrics.aggregate import Interval, mean_interval, paired_interval
from fedtrees.metrics.records import RecordScores, score_records

__all__ = [
    "Interval",
    "RecordScores",
    "advantage",
    "mean_interval",
    "paired_interval",
    "score_records",
]
