#!/bin/sh
# Compares weir's token ids with tiktoken's. Usage: run.sh [BUILD_DIR [quick|full]]
# Without BUILD_DIR the one that holds $WEIR is taken. Needs node 18+ and, the first time, the npm
# registry; packages go to BUILD_DIR/oracle.
set -eu
build=${1:-$(dirname "${WEIR:?names the binary when no build directory is given}")}
build=$(cd "$build" && pwd)
extent=${2:-quick}
here=$(cd "$(dirname "$0")" && pwd)
modules=$build/oracle
mkdir -p "$modules"
if ! cmp -s "$here/package-lock.json" "$modules/package-lock.json" || [ ! -d "$modules/node_modules" ]; then
    cp "$here/package.json" "$modules/"
    (cp "$here/package-lock.json" "$modules/" && cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund) ||
        { rm -f "$modules/package-lock.json"; exit 1; }
fi
passed=0 failed=0
pids=
for vocabulary in tiny large pairs; do
    node "$here/compare.mjs" "$build/tests/text/encode_ids" "$modules" "$vocabulary" \
        "$here/../../../models/tiny-k3/tiktoken.model" "$extent" &
    pids="$pids $!"
done
for pid in $pids; do
    if wait "$pid"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
