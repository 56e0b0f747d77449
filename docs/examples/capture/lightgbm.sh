#!/bin/sh
OUT="${1:-lightgbm}" && python "$(dirname "$0")/loopback.py" --over lightgbm --params '{"objective": "binary", "min_data_in_bin": 1, "min_data_in_leaf": 5, "num_leaves": 4}' --digits 3 --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as worker-1 --truth "$OUT/worker-0.csv" --truth "$OUT/worker-2.csv"
