#!/usr/bin/env bash
# Starts a server on the bundled model and drives its page in Chromium. Usage: run.sh BUILD_DIR [folder for screenshots]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
[ -d "$root/web/node_modules/playwright-core" ] || (cd "$root/web" && npm ci --ignore-scripts --no-audit --no-fund >/dev/null)
log=$(mktemp)
"$build/weir" serve --model "$root/models/tiny-k3" --host 127.0.0.1 --port 0 >"$log" 2>"$log.err" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -f "$log" "$log.err"' EXIT
for _ in $(seq 100); do
    url=$(sed -n 's/^ready: //p' "$log")
    [ -n "$url" ] && break
    kill -0 $server 2>/dev/null || { cat "$log.err" >&2; exit 1; }
    sleep 0.1
done
[ -n "$url" ] || { echo "the server did not become ready" >&2; cat "$log.err" >&2; exit 1; }
node "$here/browser.mjs" "$url" ${2:+"$2"}
