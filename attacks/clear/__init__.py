"""Attacks on messages that XGBoost's column split sends unencrypted."""
