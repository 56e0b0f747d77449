"""Trees that single clients grow and share: attribution to clients, and observations of their rows.

`client_trees` reads the trees and determines which client grew them, `masked_hessians` restores
masked sums, `base_score` finds base scores, `margin_cells` counts a first tree that was
grown on trees of other clients, `client_sizes` counts rows, and `per_client` combines the results.
"""
