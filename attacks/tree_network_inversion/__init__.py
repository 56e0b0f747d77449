"""Attack on the second phase of FedXGBllr: infer the leaves of the rows in a batch."""
