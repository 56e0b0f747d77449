"""Scores, each beside what an adversary gets who never looked."""

from fedtrees.metrics.advantage import LOWER_IS_BETTER, advantage, best_value
from fedtrees.metrics.aggregate import Interval, mean_interval, paired_interval
from fedtrees.metrics.blind import BlindScore, best_scores, blind_guesses, blind_scores
from fedtrees.metrics.consensus import matched_consensus
from fedtrees.metrics.records import RecordScores, Tolerance, score_records

__all__ = [
    "LOWER_IS_BETTER",
    "BlindScore",
    "Interval",
    "RecordScores",
    "Tolerance",
    "advantage",
    "best_scores",
    "best_value",
    "blind_guesses",
    "blind_scores",
    "matched_consensus",
    "mean_interval",
    "paired_interval",
    "score_records",
]
