#!/bin/sh
python "$(dirname "$0")/xgboost_ring.py" --out "${1:-ring}" && fedtrees attack "${1:-ring}/run.capture" --as worker-0 --truth "${1:-ring}/worker-1.csv" --truth "${1:-ring}/worker-2.csv"
