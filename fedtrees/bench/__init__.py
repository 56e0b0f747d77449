"""Train once, attack many: cells, suites, the runner and the store of results.

It may import all but `report`, `estimators`, `audit` and `cli`.
"""
