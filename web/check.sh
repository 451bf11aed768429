#!/usr/bin/env bash
# Rebuilds the page from its sources and compares it with the committed file that the server embeds; runs its unit tests.
set -euo pipefail
cd "$(dirname "$0")"
[ -d node_modules/vite ] || npm ci --ignore-scripts --no-audit --no-fund >/dev/null
node --test test/*.test.js
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
npx vite build --outDir "$out" --logLevel warn
if ! cmp "$out/index.html" dist/index.html; then
    echo "web/dist/index.html is not what its sources build to: run 'npm run build' in web/ and commit it" >&2
    exit 1
fi
echo "the committed page equals its sources"
