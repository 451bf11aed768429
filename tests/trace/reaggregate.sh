#!/bin/sh
# reaggregate.sh WRITE_RUN REAGGREGATE.py: invented runs of several seeds are counted again; in the
# first ones every figure is altered once, which must be found out.
set -e
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for seed in 1 2 3 4 5 6 7 8; do
    "$1" "$dir/$seed" "$seed" $((seed * 60))
done
"$1" "$dir/none" 9 1
python3 "$2" "$dir"/[1-8] "$dir/none"
python3 "$2" --mutants "$dir/1" "$dir/2" "$dir/3"
# Nine runs, and three of them altered; the first that is wrong has ended the script.
echo "12 passed, 0 failed"
