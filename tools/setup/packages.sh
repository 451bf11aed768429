# packages.sh: installs Debian packages that are missing, and only those. Sourced by demo and check.

build_packages="gcc libc6-dev meson ninja-build pkg-config libevent-dev libssl-dev libjansson-dev
    libcyaml-dev libyaml-dev libedit-dev libcmocka-dev libhiredis-dev liburing-dev
    libhwloc-dev libxxhash-dev libsqlite3-dev libcurl4-openssl-dev"
check_packages="clang libclang-rt-14-dev clang-format clang-19 mandoc curl ca-certificates git procps prometheus
    redis-server"
browser_packages="chromium fonts-dejavu-core"

# Prints the packages of its arguments that are not installed.
missing_packages() {
    for package in "$@"; do
        status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
        [ "$status" = installed ] || printf '%s ' "$package"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        echo "$0: installing packages needs root or sudo: apt-get install $missing" >&2
        return 1
    fi
}

# Makes its arguments present. Touches nothing, not even the network, when they all are.
need_packages() {
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "$0: this is not a Debian system; install by hand: $missing" >&2
        return 1
    fi
    echo "installing: $missing"
    as_root apt-get update -q || return 1
    # shellcheck disable=SC2086 # a list
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        $missing || return 1
}

# Puts a Node of version 20 or later first in PATH. Debian's is 18: it only fetches a newer one,
# which the npm package node-linux-ARCH holds, into .cache/node.
need_node() {
    node_major() { "$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0; }
    if command -v npm >/dev/null 2>&1 && [ "$(node_major node)" -ge 20 ]; then
        return 0
    fi
    case "$(uname -m)" in
    x86_64) arch=x64 ;;
    aarch64) arch=arm64 ;;
    *)
        echo "$0: no Node package for $(uname -m)" >&2
        return 1
        ;;
    esac
    home="$root/.cache/node"
    bin="$home/node_modules/node-linux-$arch/bin"
    if [ "$(node_major "$bin/node")" -lt 20 ]; then
        command -v npm >/dev/null 2>&1 || need_packages nodejs npm || return 1
        mkdir -p "$home"
        npm install --prefix "$home" --ignore-scripts --no-audit --no-fund --loglevel error \
            "node-linux-$arch@20.20.2" || return 1
    fi
    PATH="$bin:$PATH"
    export PATH
}
