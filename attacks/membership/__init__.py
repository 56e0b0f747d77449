"""Membership inference: which of a set of candidate rows were used in training?

The attack `membership` (module `attack`) combines tests of three kinds:

- likelihood ratios between reference models that were trained with and without a row (LiRA,
  Carlini et al. 2022; RMIA, Zarifzadeh et al. 2024). The module `references` computes the ratios,
  and trains the models together with `learners`;
- the Bayesian posterior of membership given released sums (`base.log_odds`), of gradients
  (`leaf_sums`, with the law of suppressed bins in `suppressed_bins` for histograms and in
  `suppressed_leaves` for leaves), or of counts in leaves, bins and sketches (`released_counts`);
- values of training rows that messages contain (`base.shared_thresholds`,
  `base.column_overlap`).
"""
