"""Rows of batches off the second phase of FedXGBllr: which leaves they fall into."""
