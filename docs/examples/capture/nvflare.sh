#!/bin/sh
OUT="${1:-nvflare}" && python "$(dirname "$0")/nvflare_loopback.py" bagging --trees 3 --out "$OUT" && fedtrees capture attack "$OUT/run.capture" --as server --attack timberstrike --truth "site-1=$OUT/worker-0.csv" --truth "site-2=$OUT/worker-1.csv" --truth "site-3=$OUT/worker-2.csv"
