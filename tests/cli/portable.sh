#!/bin/bash
# Builds with -Dportable=true and runs the one file in a root that holds the C library and nothing
# else. Called by ./check; needs root, or user namespaces.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
passed=0 failed=0

check() { # check NAME COMMAND...
    local name=$1
    shift
    if "$@"; then
        echo "ok: $name"
        passed=$((passed + 1))
    else
        echo "FAILED: $name"
        failed=$((failed + 1))
    fi
}

build=build-check/portable
[ -f $build/build.ninja ] || meson setup $build -Dportable=true -Dtests=false
ninja -C $build weir

# The dynamic section names nothing but glibc's own parts.
needs_only_glibc() {
    local needed
    needed=$(objdump -p $build/weir | awk '$1 == "NEEDED" { print $2 }')
    echo "needs: "$needed
    ! grep -vE '^(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux.*)$' <<<"$needed"
}
check "needs only glibc" needs_only_glibc

bare=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$bare"
}
trap cleanup EXIT
while read -r file; do
    mkdir -p "$bare$(dirname "$file")"
    cp -L "$file" "$bare$file"
done < <(ldd $build/weir | grep -o '/[^ ]*')
mkdir -p "$bare/tmp" "$bare/model"
cp $build/weir "$bare/weir"
cp models/tiny-k3/* "$bare/model/"

if [ "$(id -u)" -eq 0 ]; then
    enter="chroot $bare"
else
    enter="unshare --user --map-root-user --root=$bare"
fi

check "prints its version in the bare root" $enter /weir version
check "generates in the bare root" $enter /weir generate --model /model --prompt-ids 50,257,582 --max-tokens 4

serves() {
    $enter /weir serve --model /model --port 0 >"$bare/tmp/out" 2>"$bare/tmp/err" &
    server=$!
    local url= i
    for i in $(seq 100); do
        url=$(sed -n 's/^ready: //p' "$bare/tmp/out")
        [ -z "$url" ] || break
        sleep 0.1
    done
    [ -n "$url" ] || { cat "$bare/tmp/err"; return 1; }
    curl -sf -m 20 "$url/v1/models" && echo &&
        curl -sf -m 20 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
            -d '{"messages":[{"role":"user","content":"Hello!"}],"max_tokens":8}' && echo
}
check "serves in the bare root" serves
kill "$server" && check "ends with 0 on SIGTERM" wait "$server"
server=

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
