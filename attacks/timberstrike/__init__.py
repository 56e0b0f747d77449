"""TimberStrike (Di Gennaro et al. 2025): training rows from the statistics of shared trees."""
