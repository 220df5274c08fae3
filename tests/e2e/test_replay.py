"""`snug replay`: traces through the allocator, from files and pipes, as text and JSON."""
import os
import pickle
import subprocess
import sys

import harness

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import alloc_sim  # noqa: E402

MIB = 1 << 20
REAL = "tests/corpus/snapshots/train_bf16_s512.pickle"


def path(snug, name):
    return os.path.join(snug.root, name)


# ids: T4 T5
def test_real_recording(snug):
    r = snug.json("replay", path(snug, REAL), "--alloc-conf", "expandable_segments:True", "--alloc-conf", "")
    device = r.doc["devices"][0]
    exact = device["replay"]
    assert exact["exact"] and exact["addresses"] == 7591 and exact["blocks"] == 1041, exact
    assert exact["reserved_peak_bytes"] == 12660506624 and exact["first_difference"] is None, exact
    recorded, grows, defaults = device["settings"]
    assert recorded["recorded"] and not grows["recorded"], device
    assert abs(recorded["reserved_peak_bytes"] / 12660506624 - 1) < 0.01, recorded
    same = {k: v for k, v in recorded.items() if k != "recorded"}
    assert same == {k: v for k, v in defaults.items() if k != "recorded"}
    assert grows["maps"] > 0 and grows["segments_taken"] == 0, grows
    assert recorded["allocated_peak_bytes"] <= recorded["capacity_needed_bytes"] <= recorded["reserved_peak_bytes"]
    text = snug("replay", path(snug, REAL))
    assert text.rc == 0 and "exact: 7591 of 7591 addresses" in text.out and "(defaults) (recorded)" in text.out, text


# ids: T4
def test_pipe_and_page(snug):
    for name in ("protocol5.pickle", "cpp.pickle", "page.html", "shared.json", "old.pickle"):
        with open(path(snug, "tests/corpus/snapshot/" + name), "rb") as f:
            r = subprocess.run([snug.program, "replay", "-"], stdin=f, capture_output=True)
        assert r.returncode == 0 and b"exact: 2 of 2 addresses" in r.stdout, (name, r)


# ids: T5
def test_runs_out_again(snug):
    """An allocator that shares nothing with ours runs out under fragmentation; another setting fits."""
    a = alloc_sim.Allocator(capacity=1000 * MIB, seed=3)
    kept = []
    for _ in range(12):  # each leaves a hole in a segment of its own
        big = a.malloc(40 * MIB)
        a.free(big)
        small = a.malloc(11 * MIB)
        kept.append(small)
        kept.append(a.malloc(27 * MIB))
    holes = [b for b in kept if b.requested == 27 * MIB]
    for b in holes:
        a.free(b)
        kept.remove(b)
    kept += [a.malloc(30 * MIB) for _ in range(14)]
    failed = False
    try:
        a.malloc(200 * MIB)
    except alloc_sim.OutOfMemory:
        failed = True
    assert failed
    file = os.path.join(snug.dir, "oom.pickle")
    with open(file, "wb") as f:
        pickle.dump(alloc_sim.snapshot([a]), f, 4)
    r = snug.json("replay", file, "--search")
    device = r.doc["devices"][0]
    assert device["replay"]["exact"] and device["replay"]["failed_requests"] == 1, device["replay"]
    assert device["capacity_from_failed_request"] and device["capacity_bytes"] == 1000 * MIB, device
    rows = {s["setting"]: s for s in device["settings"]}
    assert rows[""]["out_of_memory"] and rows[""]["out_of_memory_request_bytes"] == 200 * MIB, rows[""]
    assert not rows["expandable_segments:True"]["out_of_memory"], rows["expandable_segments:True"]
    assert device["recommended"] == "expandable_segments:True", device["recommended"]
    text = snug("replay", file, "--search")
    assert "Recommended: PYTORCH_ALLOC_CONF=expandable_segments:True" in text.out and "and fits" in text.out, text


# ids: T5
def test_no_setting_helps(snug):
    r = snug.json("replay", path(snug, REAL), "--search")
    assert r.doc["devices"][0]["recommended"] is None, r.doc["devices"][0]["recommended"]
    assert "No setting helps" in snug("replay", path(snug, REAL), "--search").out


# ids: T4
def test_devices(snug):
    file = path(snug, "tests/corpus/traces/devices.pickle")
    assert [d["device"] for d in snug.json("replay", file).doc["devices"]] == [0, 1, 2]
    assert [d["device"] for d in snug.json("replay", file, "--device", "1").doc["devices"]] == [1]
    assert snug.json("replay", file, "--device", "3").rc == 2


# ids: T4 T5
def test_wrong_use(snug):
    real = path(snug, REAL)
    for words in ([], [real, "--capacity", "0"], [real, "--capacity", "x"], [real, "--device", "gpu"]):
        assert snug.json("replay", *words).rc == 2, words
    r = snug.json("replay", real, "--alloc-conf", "max_split_size_mb:3")
    assert r.rc == 1 and "must be >= 20" in r.doc["error"]["message"], r.doc
    r = snug.json("replay", path(snug, "tests/corpus/snapshot/refused_reduce.pickle"))
    assert r.rc == 1 and "opcode REDUCE is refused" in r.doc["error"]["message"], r.doc
    r = snug.json("replay", path(snug, "tests/corpus/snapshot/list.pickle"))
    assert r.rc == 1 and "no events" in r.doc["error"]["message"], r.doc
    assert snug.json("replay", "/nowhere.pickle").doc["error"]["code"] == "not_found"
    assert snug.json("replay", snug.dir).rc == 1


def test_static_plan_is_told(snug):
    """Addresses of a plan are no allocator's: that is said, instead of a bare list of differences."""
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=2))
    said = "this run had a static plan"
    for mode, expected in (("planned", True), ("dynamic", False)):
        file = os.path.join(snug.dir, mode + ".pickle")
        assert snug("run", graph, "--memory", mode, "--memory-history", file).rc == 0
        result = snug("replay", file)
        assert result.rc == 0 and (said in result.out) == expected, (mode, result)
