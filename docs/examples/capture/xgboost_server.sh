#!/bin/sh
OUT="${1:-server}" && python "$(dirname "$0")/loopback.py" --over xgboost --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as server --truth "$OUT/worker-0.csv" --truth "$OUT/worker-1.csv" --truth "$OUT/worker-2.csv"
