"""Histogram peeling: read training rows from gradient histograms, exactly and with a checksum."""
