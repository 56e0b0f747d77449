"""Computation on encrypted and masked values: secure sums, encrypted row sums and vectors.

Each of them exists as cryptography and as an ideal functionality with the same messages and byte
counts. Only `fedtrees.crypto.keys`, `fedtrees.crypto.obfuscators` and `fedtrees.crypto.phe_backend`
import the libraries for large integers, gmpy2 and phe. They are loaded when a run encrypts.
"""
