"""Label inference in vertical federations from record ids (Takahashi et al. 2023 and beyond).

A party without labels learns which rows reach many nodes of the trees, because it evaluates the
splits on its columns. Rows with equal labels tend to share leaves. The attacks cluster the rows, or
search for labels that explain the splits.

- `evidence`: visible leaves, splits, and the party's columns, from the messages of a view;
- `twins`: the record-id graph of Takahashi et al. (2023, Eq. 1), without its matrix;
- `union`, `communities`, `spectral`, `clustering`: clusters of the graph;
- `published`: ID2Graph as in the authors' code;
- `mixture`, `choices`: maximum-likelihood labels, given the splits that were chosen;
- `spreading`: known labels of a few rows; `noise`: true labels behind noisy ones;
- `attack`, `asked`, `routed`: the registered attacks.
"""
