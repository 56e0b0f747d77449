"""Trees that single clients grow and share: attribution to clients, and evidence about their rows.

`blocks` reads the trees, `turns` and `chains` determine which client grew them, `hessians` restores
masked sums, `start` and `start_of_values` find base scores, `cells`, `compositions` and
`late_counts` count a first tree that was grown on trees of other clients, `sizes` counts rows, and
`victims` combines the results.
"""
