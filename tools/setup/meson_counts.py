"""Counts the tests within each meson test of a build directory from meson-logs/testlog.json, and
prints one line each. A program that fails, or whose output shows no test that passed, counts as a
failed test, so that an empty or crashing suite cannot pass unnoticed. Called by steps.sh."""

import json
import re
import sys

PATTERNS = {
    "passed": [r"\[  PASSED  \] (\d+) test", r"^(\d+) passed, \d+ failed"],
    "failed": [r"\[  FAILED  \] (\d+) test", r"^\d+ passed, (\d+) failed"],
    "skipped": [r"\[  SKIPPED \] (\d+) test", r"^\d+ passed, \d+ failed, (\d+) skipped"],
}


def unittest_counts(output):
    """What Python's unittest prints: Ran 5 tests ... OK, or FAILED (failures=1, skipped=1)."""
    ran = sum(int(n) for n in re.findall(r"^Ran (\d+) tests? in", output, re.MULTILINE))
    tail = " ".join(re.findall(r"^(?:OK|FAILED) \((.*)\)$", output, re.MULTILINE))
    named = {kind: int(n) for kind, n in re.findall(r"(\w+)=(\d+)", tail)}
    failed = named.get("failures", 0) + named.get("errors", 0)
    skipped = named.get("skipped", 0)
    return {"passed": ran - failed - skipped, "failed": failed, "skipped": skipped}


def telling_lines(output):
    """The lines of a failed test that say why: so much of a log is read even where only the end
    of all output is kept."""
    wanted = re.compile(r"\[  ERROR|\[ *LINE|Error:|ERROR:|DISTURBED|late by|assert|runtime error")
    return [line[:200] for line in output.splitlines() if wanted.search(line)][-12:]


total = dict.fromkeys(PATTERNS, 0)
with open(sys.argv[1] + "/meson-logs/testlog.json", encoding="utf-8") as log:
    for line in log:
        test = json.loads(line)
        output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
        count = {
            kind: sum(int(n) for p in patterns for n in re.findall(p, output, re.MULTILINE))
            for kind, patterns in PATTERNS.items()
        }
        for kind, n in unittest_counts(output).items():
            count[kind] += n
        good = test["result"] == "OK" and count["passed"] > 0
        if not good and count["failed"] == 0:
            count["failed"] = 1
        print(f"{test['name']}: {test['result']}, {count}, {test['duration']:.1f} s")
        if not good or count["failed"]:
            for said in telling_lines(output):
                print("    " + said)
        for kind in total:
            total[kind] += count[kind]
print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
