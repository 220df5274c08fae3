"""`snug doctor`: the cases of tests/corpus/oom through the program, several inputs in one, wrong use."""
import json
import os

CORPUS = "tests/corpus/oom"


def head(path):
    """The expectations in the first lines of a case."""
    want = {"also": []}
    with open(path, "rb") as f:
        for line in f:
            if not line.startswith(b"#: "):
                break
            key, _, value = line[3:].decode().strip().partition(" ")
            if key == "also":
                want["also"].append(value)
            else:
                want[key] = value
    return want


# ids: T3 T4
def test_confirmed_cases(snug):
    """Every case whose cause is stated in its report, as a file."""
    n = 0
    for name in sorted(os.listdir(os.path.join(snug.root, CORPUS))):
        path = os.path.join(snug.root, CORPUS, name)
        want = head(path)
        if want["label"] != "C":
            continue
        n += 1
        doc = snug.json("doctor", path).doc
        assert doc["status"] == "succeeded" and doc["schema"] == 1, name
        assert doc["kind"] == want["kind"], (name, doc["kind"], doc["rule"])
        named = [a["kind"] for a in doc["also"]]
        assert all(a in named for a in want["also"]), (name, named)
        assert doc["remedies"] and all(r["what"] and r["why"] for r in doc["remedies"]), name
        assert doc["checks"], name
    assert n >= 20, n


# ids: T3
def test_text_answer(snug):
    """Verdict first, figures, remedies with reasons, checks."""
    r = snug("doctor", os.path.join(snug.root, CORPUS, "row35_cached.txt"))
    assert r.rc == 0, r
    parts = ["Verdict: fragmentation", "Evidence", "What to try, in this order", "why:", "How to see that it is fixed"]
    places = [r.out.index(p) for p in parts]
    assert places == sorted(places), r.out
    assert "empty_cache() proves nothing" in r.out
    r = snug("doctor", os.path.join(snug.root, CORPUS, "smi_shared.txt"))
    assert "77.16 GiB of 80.00 GiB used" in r.out and "process 11320, python" in r.out, r


# ids: T4
def test_several_in_one(snug):
    """A log with two ranks, a memory summary and nvidia-smi: each is read."""
    names = ["form_ranks.txt", "summary_capacity.txt", "smi_shared.txt"]
    text = "".join(open(os.path.join(snug.root, CORPUS, n), encoding="utf-8").read() for n in names)
    doc = snug.json("doctor", snug.write("all.log", text)).doc
    assert len(doc["messages"]) == 4 and {m["rank"] for m in doc["messages"]} == {0, 1, 2, 3}
    assert len(doc["summaries"]) == 1 and len(doc["nvidia_smi"]["processes"]) == 2
    assert doc["kind"] == "fragmentation"


# ids: T9
def test_own_runs(snug):
    """What `snug run --json` writes is read again: a healthy run, and one whose loss is not finite."""
    good = {"schema": 1, "status": "succeeded", "error": None, "metrics": {"precision": "fp16", "losses": [1.0, 0.5], "scale": 65536.0}}
    doc = snug.json("doctor", snug.write("good.json", json.dumps(good))).doc
    assert doc["kind"] is None and doc["symptoms"] == [] and doc["runs"] == 1
    events = "".join(json.dumps({"event": "batch", "loss": x}) + "\n" for x in [1.0, 0.7, "NaN"])
    doc = snug.json("doctor", snug.write("bad.events", events)).doc
    assert [s["symptom"] for s in doc["symptoms"]] == ["loss_not_finite"], doc


# ids: T4
def test_wrong_use(snug):
    r = snug("doctor")
    assert r.rc == 2, r
    r = snug("doctor", os.path.join(snug.dir, "missing.log"))
    assert r.rc == 1 and "missing.log" in r.err, r
    r = snug("doctor", snug.write("plain.txt", "all went well\n"))
    assert r.rc == 1 and "no out-of-memory message" in r.err, r
    r = snug("doctor", snug.write("packed.gz", "\x1f\x8b\x08"))
    assert r.rc == 1, r
