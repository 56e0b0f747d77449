#!/bin/sh
OUT="${1:-ring}" && python "$(dirname "$0")/loopback.py" --over rabit --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as worker-0 --truth "$OUT/worker-1.csv" --truth "$OUT/worker-2.csv"
