"""A new metric: how far the column means of guessed rows are from those of the true rows.

fedtrees plugin check column_means.py
fedtrees bench --plugin column_means.py -p fedtree-hist --threat client -a timberstrike
"""

import numpy as np

from fedtrees import Measure, Score, register
from fedtrees.metrics.victims_rows import RecordMetric


@register.metric("column-means")
class ColumnMeans(RecordMetric):
    """Score guessed rows (claims of type `Records`) by the means of their columns.

    The base class provides the true rows of the victims (`truth`) and the blind guesses, whose best
    score is the baseline. Missing values are left out of the means.
    """

    measures = (
        Measure(
            "column_means",
            "mean error of the column means",
            "standard deviations",
            best=0.0,
            klass="group",
            decimals=2,
            phrase="estimate the means of the columns up to {} standard deviations",
        ),
    )
    main = ("column_means",)
    prominence = 0

    def score(self, claims, truth):
        errors = []
        for guessed, true in zip(claims[0].table.X.T, truth.rows.X.T, strict=True):
            guessed, true = guessed[~np.isnan(guessed)], true[~np.isnan(true)]
            if len(guessed) and len(true) and true.std() > 0:
                errors.append(abs(guessed.mean() - true.mean()) / true.std())
        return [Score("column_means", float(np.mean(errors)) if errors else None)]
