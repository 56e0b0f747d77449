"""Scores, each beside what an adversary gets who never looked.

It may import `messages` and below.
"""

from fedtrees.metrics.advantage import advantage
from fedtrees.metrics.aggregate import Interval, mean_interval, paired_interval
from fedtrees.metrics.blind import blind_guesses
from fedtrees.metrics.consensus import matched_consensus
from fedtrees.metrics.records import RecordScores, Tolerance, score_records

__all__ = [
    "Interval",
    "RecordScores",
    "Tolerance",
    "advantage",
    "blind_guesses",
    "matched_consensus",
    "mean_interval",
    "paired_interval",
    "score_records",
]
