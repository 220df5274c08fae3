"""`snug doctor` on memory snapshots: verdict, holders, the page, what changed between two, files of our own."""
import json
import os
import re
import shutil
import subprocess

import harness
from test_plan_page import page_of

KINDS = {"growth": "growth", "graph": "growth", "capacity": "capacity", "evaluation": "evaluation_graph", "evaluation_results": "growth",
         "single": "single_request", "pieces": "fragmentation", "pieces_expandable": "fragmentation", "several": "capacity", "calm": "unknown",
         "limit": "own_limit"}


def path(snug, name, folder="doctor_snapshots"):
    return os.path.join(snug.root, "tests/corpus", folder, name + ".pickle")


# ids: T3 T4
def test_kinds(snug):
    for name, kind in KINDS.items():
        doc = snug.json("doctor", path(snug, name)).doc
        assert doc["kind"] == kind, (name, doc["kind"], doc["rule"])
        assert doc["status"] == "succeeded" and doc["remedies"] and doc["holders"]["places"], name
        assert doc["out_of_memory"] == (name != "calm"), name


# ids: T2 T4
def test_text_of_a_real_one(snug):
    """The source lines that hold the peak, the phase, the categories."""
    r = snug("doctor", path(snug, "train_bf16_s512", "snapshots"))
    assert r.rc == 0, r
    for part in ("no out-of-memory", "in the beginning of backward", "cs336_basics/nn_utils.py:6 softmax", "optimizer state", "cs336_basics/model.py:39 forward",
                 "What held it at the peak"):
        assert part in r.out, (part, r.out)
    assert "_call_impl" not in r.out and "_PyEval" not in r.out


# ids: T5
def test_setting_is_proven(snug):
    """A setting is advised only where a replay of the recording shows that it helps; the replay command agrees."""
    doc = snug.json("doctor", path(snug, "pieces")).doc
    proven = [r for r in doc["remedies"] if r["id"] == "proven"]
    assert len(proven) == 1 and doc["replay"]["helps"] in proven[0]["why"] and doc["replay"]["fits"]
    again = snug.json("replay", path(snug, "pieces"), "--alloc-conf", doc["replay"]["helps"]).doc["devices"][0]
    assert [s["out_of_memory"] for s in again["settings"] if s["setting"] == doc["replay"]["helps"]] == [False]
    for name in ("capacity", "calm", "single", "limit"):
        doc = snug.json("doctor", path(snug, name)).doc
        assert not any(r["id"] in ("proven", "expandable", "max_split", "gc_threshold") for r in doc["remedies"]), name


# ids: T2
def test_page(snug):
    """One file that needs nothing else, below 5 MB, with the figures of the document."""
    out = os.path.join(snug.dir, "page.html")
    for name, folder in (("growth", "doctor_snapshots"), ("train_bf16_s512", "snapshots")):
        doc = snug.json("doctor", path(snug, name, folder), "--html", out).doc
        text, data = page_of(out)
        assert doc["html"] == out and len(text) < 5000000
        assert data["document"]["holders"] == doc["holders"] and data["document"]["kind"] == doc["kind"]
        drawing = data["drawing"]
        assert max(b[1] for b in drawing["buckets"]) == doc["snapshot"]["devices"][0]["live_peak_bytes"]
        assert all(sum(b[5:]) == b[1] for b in drawing["buckets"])
        assert drawing["map"]["live_bytes"] == doc["holders"]["live_bytes"]
        assert "prefers-color-scheme" in text


# ids: T2
def test_page_in_a_browser(snug):
    """The script runs to its end: verdict, rows of holders, what stays, segments, remedies stand in the page."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        raise harness.Skip("no chromium")
    out = os.path.join(snug.dir, "page.html")
    doc = snug.json("doctor", path(snug, "growth"), "--html", out).doc
    try:
        dom = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--user-data-dir=" + snug.dir + "/browser",
                              "--dump-dom", "file://" + out], capture_output=True, timeout=120, text=True).stdout
    except subprocess.TimeoutExpired:
        raise harness.Skip("chromium did not answer within 120 s")
    body = dom[:dom.index('<script type="application/json"')]
    for part in ('<div class="kind" id="kind">growth', "project/train.py:47 train", "65 segments", "32.00 MiB each", "out of memory", doc["remedies"][0]["what"][:30]):
        assert part in body, part
    assert body.count("<tr>") == len(doc["holders"]["places"]) + len(doc["iterations"]["stays"]) + len(doc["fragmentation"]["then"]["pinned_segments"])
    assert "4,361 events" in body


def test_page_wrong_use(snug):
    r = snug.json("doctor", path(snug, "calm"), "--html", os.path.join(snug.dir, "no/x.html"))
    assert r.rc == 1 and r.doc["error"]["code"] in ("io", "not_found"), r
    text = snug.write("a.log", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    r = snug.json("doctor", text, "--html", os.path.join(snug.dir, "x.html"))
    assert r.rc != 0 and "snapshot" in r.doc["error"]["message"], r
    r = snug("doctor", path(snug, "calm"), path(snug, "graph"))
    assert r.rc == 2, r
    r = snug("doctor", path(snug, "calm"), "--capacity", "many")
    assert r.rc == 2 and "many" in r.err, r


# ids: T2
def test_diff(snug):
    r = snug.json("doctor", "--diff", path(snug, "calm"), path(snug, "growth"))
    new = [p for p in r.doc["places"] if p["change"] == "new" and p["place"] == "project/train.py:47 train"]
    assert r.rc == 0 and len(new) == 1 and new[0]["b_bytes"] == 32 * (32 << 20), r.doc["places"]
    assert r.doc["changes"]["live_peak_bytes"] == r.doc["b"]["live_peak_bytes"] - r.doc["a"]["live_peak_bytes"]
    r = snug("doctor", "--diff", path(snug, "calm"), path(snug, "growth"))
    assert r.rc == 0 and "project/train.py:47 train" in r.out and re.search(r"peak of live memory +2\.3", r.out), r.out
    r = snug("doctor", "--diff", path(snug, "calm"), path(snug, "calm"))
    assert "No place holds more or less." in r.out, r.out
    assert snug("doctor", "--diff", path(snug, "calm")).rc == 2


# ids: T3
def test_capacity_given(snug):
    doc = snug.json("doctor", path(snug, "capacity"), "--capacity", "24GiB").doc
    assert doc["kind"] == "other_process" and doc["evidence"]["total_bytes"] == 24 << 30
    assert any("how large the card is" in n for n in snug.json("doctor", path(snug, "capacity")).doc["notes"])


# ids: T2 T4
def test_own_snapshot(snug):
    """What `snug run --memory-history` writes: categories and nodes as the plan has them."""
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    out = os.path.join(snug.dir, "history.json")
    r = snug.json("run", graph, "--memory-history", out, "--set", "TrainingLoop.epochs=1")
    assert r.rc == 0, r
    doc = snug.json("doctor", out).doc
    with open(out, encoding="utf-8") as f:
        events = [e for t in json.load(f)["device_traces"] for e in t]
    named = {e.get("category") for e in events} - {None, ""}
    found = {c["category"] for c in doc["holders"]["categories"]}
    assert found & named, (found, named)
    assert any(p.get("node") for p in doc["holders"]["places"]), doc["holders"]["places"]
