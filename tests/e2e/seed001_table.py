"""docs/tables/seed001.md: each sentence of the founding page on several cards beside its tests.

    seed001_table.py [--check]     exit status 1 where a sentence has no test, or a test names none
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def sentences():
    """[(title, [(id, sentence)])]"""
    parts = []
    for line in open(os.path.join(HERE, "seed001.txt")):
        if line.startswith("## "):
            parts.append((line[3:].strip(), []))
        elif line.strip() and not line.startswith("#"):
            parts[-1][1].append(tuple(line.strip().split(" ", 1)))
    return parts


def tests():
    """{id: ["file:function"]}, from the comments in front of functions."""
    found = {}
    for file in sorted(os.listdir(HERE)):
        if not (file.startswith("test_") and file.endswith(".py")):
            continue
        text = open(os.path.join(HERE, file)).read()
        for ids, function in re.findall(r"^# seed001: *(.*)\n(?:#.*\n)*def (test_\w+)", text, re.M):
            for i in ids.split():
                found.setdefault(i, []).append("%s:%s" % (file, function))
    return found


def main():
    known, tested, faults = set(), tests(), []
    out = ["# Seed 001: sentences and tests", "",
           "Made by scripts/docs from tests/e2e/seed001.txt and the tests; do not edit.", "",
           "What the founding page on several cards promises, as far as it can be seen without a browser, and the test that",
           "fails without it. All of them run real servers, agents and runs, on simulated cards."]
    for title, rows in sentences():
        out += ["", "## %s" % title, "", "|id|sentence|tests|", "|---|---|---|"]
        for i, sentence in rows:
            known.add(i)
            if i not in tested:
                faults.append("no test of %s: %s" % (i, sentence))
            out.append("|%s|%s|%s|" % (i, sentence.replace("|", "\\|"), ", ".join("`%s`" % t for t in tested.get(i, []))))
    faults += ["%s of %s is no sentence" % (i, tested[i][0]) for i in sorted(set(tested) - known)]
    sys.stdout.write("\n".join(out) + "\n")
    for fault in faults:
        sys.stderr.write("seed001: %s\n" % fault)
    return 1 if faults and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
