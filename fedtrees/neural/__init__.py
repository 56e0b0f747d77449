"""Networks on tables: how rows become numbers, what a network computes, how it is trained."""
