"""Label inference in vertical federations from record ids (Takahashi et al. 2023 and beyond).

A party without labels learns which rows reach many nodes of the trees, because it evaluates the
splits on its columns. Rows with equal labels tend to share leaves. The attacks cluster the rows, or
search for labels that explain the splits.

- `evidence`: visible leaves, splits, and the party's columns, from the messages of a view, and the
  likelihood of the splits;
- `communities`: the record-id graph of Takahashi et al. (2023, Eq. 1) without its matrix, and its
  communities;
- `graph_methods`: connected components, spectral embedding, spreading of a few known labels, and
  the Louvain method as in the code of ID2Graph;
- `mixture`: maximum-likelihood labels, given the leaves and the splits that
  were chosen, and true labels behind noisy ones;
- `attack`, `endpoint`: the registered attacks.
"""
