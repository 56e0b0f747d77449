"""Encrypted values: interfaces of encryption, addition and decryption, and their costs.

This package contains the ideal functionality. `fedtrees.crypto` implements the same interfaces with
cryptography, and registers itself as an entry point of the group of sealings. The package imports
`fedtrees.core`.
"""
