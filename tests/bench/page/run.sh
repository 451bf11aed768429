#!/usr/bin/env bash
# Makes a report of an invented sweep and opens it in Chromium. Usage: run.sh BUILD_DIR [folder for screenshots]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$(cd "$1" && pwd)
[ -d "$root/web/node_modules/playwright-core" ] || (cd "$root/web" && npm ci --ignore-scripts --no-audit --no-fund >/dev/null)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/tests/bench/invent_runs" "$work/sweep"
"$build/weir" report "$work/sweep" --out "$work/report.html" --title 'Invented <sweep>' --prices tco-2026-07-owning
node "$here/page.mjs" "$work" ${2:+"$2"}
