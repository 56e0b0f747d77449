"""Labels and values, read off what XGBoost's column split sends in clear."""
