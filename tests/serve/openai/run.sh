#!/bin/sh
# The openai SDK against weir serve, then a short soak. WEIR names the binary (default: build/weir);
# SOAK_SECONDS the length of the soak (default 8). Packages come from the lock file, without scripts.
set -eu
cd "$(dirname "$0")"
if ! cmp -s package-lock.json node_modules/.lock; then
    npm ci --ignore-scripts --no-audit --no-fund
    cp package-lock.json node_modules/.lock
fi
status=0
node --test --test-reporter=tap sdk.test.mjs || status=1
node soak.mjs --seconds "${SOAK_SECONDS:-8}" || status=1
exit $status
