#!/usr/bin/python3
"""Tests of the whole program, run as a user runs it; closing line: N passed, N failed, N skipped.

Every function test_*(snug) of the files test_*.py is a test; `snug` is a harness.Snug with a fresh
SNUG_HOME. A comment `# ids:` in front of a test names the requirements that it shows.
"""
import argparse
import importlib
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import harness  # noqa: E402


def run_one(function, program):
    """'passed', 'failed' or 'skipped', and what there is to say."""
    with harness.Snug(program, ROOT) as snug:
        try:
            function(snug)
        except harness.Skip as why:
            return "skipped", str(why)
        except AssertionError as wrong:
            place = traceback.extract_tb(wrong.__traceback__)[-1]
            where = [p for p in traceback.extract_tb(wrong.__traceback__) if "test_" in p.filename]
            place = where[-1] if where else place
            return "failed", "%s:%d: %s %s" % (os.path.basename(place.filename), place.lineno, place.line, wrong)
        except Exception:
            return "failed", traceback.format_exc()
    return "passed", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snug", default=os.path.join(ROOT, "build/snug"))
    parser.add_argument("-k", default="", help="only tests whose name contains this")
    options = parser.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for file in sorted(os.listdir(HERE)):
        if not (file.startswith("test_") and file.endswith(".py")):
            continue
        module = importlib.import_module(file[:-3])
        for name, function in list(vars(module).items()):
            full = "%s.%s" % (file[5:-3], name[5:])
            if not name.startswith("test_") or options.k not in full:
                continue
            start = time.time()
            result, text = run_one(function, options.snug)
            counts[result] += 1
            print("%-8s %-48s %6.1f s" % (result, full, time.time() - start), flush=True)
            if text:
                print("    " + text.strip().replace("\n", "\n    "), flush=True)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
