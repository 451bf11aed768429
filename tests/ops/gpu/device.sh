#!/usr/bin/env bash
# Runs the kernels on the GPU of this machine: each against the reference, then its time.
# Usage: device.sh FOLDER [arguments of gpu_device]     FOLDER: made by package.sh
set -uo pipefail
folder=$(cd "$1" && pwd) || exit 1
shift
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader
fi
exec "$folder/gpu_device" --modules "$folder" "$@"
