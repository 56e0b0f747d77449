"""Run attacks in a separate process, which receives a view as bytes and returns a guess as bytes.

The package imports only `fedtrees.core`, so that the process of attacks never contains the ground
truth.
"""
