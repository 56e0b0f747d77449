"""Train once, attack many: cells, suites, the runner and the store of results."""
