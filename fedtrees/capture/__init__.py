"""Captures of real frameworks: record, decode and attack the messages of a federated training.

A relay or a plug-in records the traffic of XGBoost, LightGBM, NVFlare or Flower. Decoders convert
the bytes to the messages of the simulated protocols, so that the attacks of the bench can read
them.
"""
