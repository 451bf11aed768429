#!/bin/sh
# A room includes only its own headers and those of the rooms before it. Run by meson; prints what
# breaks the rule and a count.
cd "${WEIR_SOURCE_ROOT:-.}" || exit 1
rooms="base machine text model ops load comm forward cache engine serve trace plan bench cli"
passed=0 failed=0 before=" "
for room in $rooms; do
    before="$before$room "
    [ -d "src/$room" ] || continue
    for file in $(find "src/$room" -name '*.[ch]'); do
        bad=
        for used in $(sed -n 's/^ *# *include *"\([a-z]*\)\/[^"]*".*/\1/p' "$file" | sort -u); do
            case "$before" in
            *" $used "*) ;;
            *) bad="$bad $used" ;;
            esac
        done
        if [ -n "$bad" ]; then
            echo "$file: includes later rooms:$bad"
            failed=$((failed + 1))
        else
            passed=$((passed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
