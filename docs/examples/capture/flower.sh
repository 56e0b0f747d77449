#!/bin/sh
OUT="${1:-flower}" && python "$(dirname "$0")/flower_here.py" bagging --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as server --attack timberstrike --truth "node-1=$OUT/worker-0.csv" --truth "node-2=$OUT/worker-1.csv" --truth "node-3=$OUT/worker-2.csv"
