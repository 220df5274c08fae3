"""`snug plan --problem`: the storage planner by itself, on the published hard problems and on files that are none."""
import csv
import os
import random

MINIMALLOC = "tests/corpus/minimalloc"


def check(path, capacity):
    """The answer's rows, checked without any code of ours."""
    with open(path) as f:
        rows = [{k: (v if k == "id" else int(v)) for k, v in row.items()} for row in csv.DictReader(f)]
    for i, a in enumerate(rows):
        assert 0 <= a["offset"] and a["offset"] + a["size"] <= capacity, a
        for b in rows[:i]:
            apart = a["upper"] <= b["lower"] or b["upper"] <= a["lower"]
            assert apart or a["offset"] + a["size"] <= b["offset"] or b["offset"] + b["size"] <= a["offset"], (a, b)
    return rows


def test_published_capacities(snug):
    for name in "ABCDEF":
        source = os.path.join(snug.root, MINIMALLOC, name + ".1048576.csv")
        answer = os.path.join(snug.dir, name + ".csv")
        doc = snug.json("plan", "--problem", source, "--capacity", "1MiB", "-o", answer).doc
        assert doc["fits"] and doc["peak_bytes"] <= 1048576 and doc["lower_bound_bytes"] <= doc["peak_bytes"], doc
        assert doc["strategy"] and doc["seconds"] >= 0 and len(doc["offsets"]) == doc["buffers"], doc
        rows = check(answer, 1048576)
        with open(source) as f:
            asked = [(r["id"], r["lower"], r["upper"], r["size"]) for r in csv.DictReader(f)]
        assert asked == [(r["id"], str(r["lower"]), str(r["upper"]), str(r["size"])) for r in rows]


def test_smallest_and_too_small(snug):
    source = os.path.join(snug.root, MINIMALLOC, "input.12.csv")
    r = snug("plan", "--problem", source)
    assert r.rc == 0 and "peak          12\n" in r.out and "no plan has a smaller peak" in r.out, r
    r = snug.json("plan", "--problem", source, "--capacity", "11")
    assert r.rc == 3 and r.doc["error"]["code"] == "out_of_memory" and r.doc["fits"] is False, r


def test_wrong_use(snug):
    source = os.path.join(snug.root, MINIMALLOC, "input.12.csv")
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    for words in (["--problem", source, "--capacity", "x"], ["--problem", source, "--capacity", "0"],
                  ["--problem", source, graph], ["--problem", source, "--set", "a.b=1"], [graph, "--capacity", "3"], []):
        assert snug.json("plan", *words).rc == 2, words
    assert snug.json("plan", "--problem", "/nowhere.csv").rc == 1
    assert snug.json("plan", "--problem", snug.dir).rc == 1


def test_damaged_files(snug):
    r = random.Random(5)
    with open(os.path.join(snug.root, MINIMALLOC, "A.1048576.csv"), "rb") as f:
        whole = f.read()[:2000]
    path = os.path.join(snug.dir, "x.csv")
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(r.randint(1, 5)):
            at = r.randrange(len(data))
            kind = r.randrange(3)
            if kind == 0:
                data[at] = r.randrange(256)
            elif kind == 1:
                del data[at:at + r.randint(1, 30)]
            else:
                data[at:at] = r.choice([b",", b"\n", b"-", b"9" * 30, b"\0", b"id,"])
        with open(path, "wb") as f:
            f.write(data)
        answer = snug.json("plan", "--problem", path, "--capacity", "1GiB")
        assert answer.rc in (0, 1, 3), answer
        if answer.rc == 1:
            assert "x.csv" in answer.doc["error"]["message"], answer
