"""Neural networks on tables: encoding of rows, models, gradients and the Adam optimizer."""
