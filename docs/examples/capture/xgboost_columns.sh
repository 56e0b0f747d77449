#!/bin/sh
OUT="${1:-columns}" && python "$(dirname "$0")/loopback.py" --over xgboost --params '{"objective": "binary:logistic", "vertical": true}' --columns 6 --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as worker-1 --target label --truth "$OUT/worker-0.csv" --truth "$OUT/worker-2.csv"
