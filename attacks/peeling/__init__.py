"""Histogram peeling: read training rows off gradient histograms, exactly and with a checksum."""
