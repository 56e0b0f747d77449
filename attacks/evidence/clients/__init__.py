"""Trees that clients grow alone and share: who grew which, and what they tell about the rows.

`blocks` reads the trees, `turns` and `chains` find who grew them, `hessians` restores masked sums,
`start` and `start_of_values` find base scores, `cells`, `compositions` and `late_counts` count a
first tree that was grown on others' trees, `sizes` counts rows, and `victims` puts it together.
"""
