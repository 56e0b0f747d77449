"""Federated training protocols: parties and their choreography.

It may import `messages` and below.
"""
