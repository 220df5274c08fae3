#!/usr/bin/python3
"""Runs the parity tests against PyTorch; closing line: N passed, N failed, N skipped."""
import argparse
import importlib
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/tests/optool"))
    parser.add_argument("--snug", default=os.path.join(ROOT, "build/snug"))
    parser.add_argument("-k", default="", help="only tests whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="random cases of each kind")
    parser.add_argument("--table", default=os.path.join(ROOT, "build/parity.json"))
    parser.add_argument("-v", action="store_true", help="every failure, not the first three of a test")
    options = parser.parse_args()

    try:
        import torch
    except ImportError:
        print("skip: PyTorch is missing (Debian package python3-torch)")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    torch.set_num_threads(1)
    import harness
    import optool

    tool = optool.Tool(options.tool)
    tool.snug = options.snug
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    rows = []
    for file in sorted(os.listdir(HERE)):
        if not (file.startswith("test_") and file.endswith(".py")):
            continue
        module = importlib.import_module(file[:-3])
        for name, function in list(vars(module).items()):
            full = "%s.%s" % (file[5:-3], name[5:])
            if not name.startswith("test_") or options.k not in full:
                continue
            start = time.time()
            context, skipped = harness.run_test(function, tool, options.seed, options.rounds)
            seconds = time.time() - start
            rows.append((full, context.records))
            result = "skipped" if skipped else "failed" if context.failures else "passed"
            counts[result] += 1
            print("%-8s %-40s %4d cases %6.1f s%s" % (
                result, full, context.count, seconds, "  " + str(skipped) if skipped else ""), flush=True)
            shown = context.failures if options.v else context.failures[:3]
            for text in shown:
                print("    " + text.replace("\n", "\n    "))
            if len(context.failures) > len(shown):
                print("    ... and %d more" % (len(context.failures) - len(shown)))
            if context.failures:
                print("    repeat: tests/parity/run.py --tool %s -k %s --seed %d --rounds %d" % (
                    options.tool, full, options.seed, options.rounds), flush=True)
    tool.close()
    if not options.k:
        harness.write_table(options.table, rows)
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
