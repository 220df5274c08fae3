"""The history of a run's memory and its snapshots: forms, figures, and the state when memory runs out."""
import collections
import json
import os
import sys

import harness
import snapshot_rules

MIB = 1 << 20


def recorded(snug, graph, form="pickle", rc=0, options=(), env=None):
    """The result of a run with a history, and its snapshot, after the viewers' rules were applied."""
    path = os.path.join(snug.dir, "history." + form)
    result = snug.json("run", graph, "--memory-history", path, *options, env=env or {})
    assert result.rc == rc, result
    if form == "json":
        with open(path) as f:
            snapshot = json.load(f)
    else:
        snapshot = snapshot_rules.read(path)
        snapshot_rules.check(snapshot)
    return result, snapshot


def peak_of(trace):
    """The most bytes that live at once, by the events."""
    live, peak = 0, 0
    for e in trace:
        live += {"alloc": e["size"], "free_completed": -e["size"]}.get(e["action"], 0)
        peak = max(peak, live)
    return peak


def names(frames):
    return [f["name"] for f in frames]


# ids: T2
def test_planned(snug):
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(harness.CNN, validate=True, train__max_steps=4))
    result, s = recorded(snug, graph)
    trace = s["device_traces"][0]
    assert peak_of(trace) == result.doc["peak_bytes_planned"] == result.doc["peak_bytes_measured"], (peak_of(trace), result)
    assert result.doc["memory_history"]["events"] == len(trace) and not result.doc["memory_history"]["ran_out"]
    # Everything that is allocated says who, where and for what.
    categories = collections.Counter(e["category"] for e in trace if e["action"] == "alloc")
    assert {"parameters", "gradients", "optimizer_state", "activations", "inputs"} <= set(categories), categories
    steps = {e.get("step") for e in trace if e["action"] == "alloc" and e["category"] == "gradients"}
    assert steps == {0, 1, 2, 3}, steps
    for e in trace:
        if e["action"] == "alloc":
            assert len(e["frames"]) == 2 and e["frames"][0]["filename"] == graph, e
            assert e["frames"][1]["name"].startswith("train (TrainingLoop)"), e
    conv = [e for e in trace if e["action"] == "alloc" and names(e["frames"])[0] == "model/l0 (SequentialModel) conv"]
    assert conv and conv[0]["node"] == "model/l0", names(trace[20]["frames"])
    with open(graph) as f:
        line = next(i for i, text in enumerate(f, 1) if '"id": "model"' in text)
    assert conv[0]["frames"][0]["line"] == line, (conv[0], line)
    # At the end the variables are there, under their names.
    held = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
    assert any("l0.weight" in names(b["frames"])[0] for b in held), held[:2]
    assert s["snug"]["device"] == "cpu" and s["snug"]["capacity_bytes"] > 0


# ids: T2 T5
def test_dynamic(snug):
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(harness.CNN, train__max_steps=3))
    result, s = recorded(snug, graph, options=("--memory", "dynamic"))
    trace = s["device_traces"][0]
    kinds = collections.Counter(e["action"] for e in trace)
    assert kinds["segment_alloc"] > 0 and kinds["alloc"] > kinds["free_completed"] > 0, kinds
    assert all(seg["total_size"] % (2 * MIB) == 0 for seg in s["segments"]), s["segments"]
    requested = peak_of(trace)
    assert requested <= result.doc["peak_bytes_measured"] <= result.doc["memory"]["reserved_bytes_peak"]
    assert any(names(e["frames"])[0] == "model/l0 (SequentialModel) conv" for e in trace if e["action"] == "alloc")


# ids: T2 T4
def test_replay(snug):
    """Our snapshots are read by our own tools, and an allocator fed with the requests gives the recorded addresses:
    those of the training loop, and of the evaluation after it, which has an allocator of its own."""
    harness.need_fashion()
    graph = snug.example("fashion-cnn")
    sets = ("--set", "TrainingLoop.max_steps=2", "--set", "TrainingLoop.epochs=1", "--memory", "dynamic")
    for form, conf in (("pickle", ""), ("json", "expandable_segments:True"), ("pickle", "roundup_power2_divisions:4")):
        result, s = recorded(snug, graph, form, options=sets, env={"SNUG_ALLOC_CONF": conf})
        assert s["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == conf
        pools = {tuple(e["pool_id"]) for e in s["device_traces"][0]}
        assert len(pools) == 2, pools
        device = snug.json("replay", os.path.join(snug.dir, "history." + form)).doc["devices"][0]
        assert device["replay"]["exact"] and device["replay"]["addresses"] > 500, device
        told = snug.json("doctor", os.path.join(snug.dir, "history." + form))
        assert told.rc == 0, told


# ids: T2
def test_json_is_the_same(snug):
    """Both forms say the same; in JSON frames are numbers of snug.stacks."""
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=2))
    _, a = recorded(snug, graph)
    _, b = recorded(snug, graph, "json")
    stacks = [[b["snug"]["frames"][i] for i in stack] for stack in b["snug"]["stacks"]]

    def plain(events, stacks):
        keys = ("action", "size", "category", "node", "step")
        return [[e.get(k) for k in keys] + [names(stacks[e["frames"]] if stacks else e["frames"])] for e in events]

    assert plain(a["device_traces"][0], None) == plain(b["device_traces"][0], stacks)
    assert sorted(a["allocator_settings"]) == sorted(b["allocator_settings"])
    assert [s["total_size"] for s in a["segments"]] == [s["total_size"] for s in b["segments"]]


# ids: T2
def test_torch_viewer(snug):
    """PyTorch's own _memory_viz reads the segments; 1.13 takes their bare list."""
    sys.path.insert(0, "/usr/lib/python3/dist-packages")
    try:
        import torch.cuda._memory_viz as viewer
    except ImportError:
        raise harness.Skip("python3-torch is missing")
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=2))
    _, s = recorded(snug, graph, options=("--memory", "dynamic"))
    stats = viewer.stats(s["segments"])
    assert stats["segments"] == len(s["segments"])
    assert stats["total_size"].value == sum(seg["total_size"] for seg in s["segments"])
    lines = viewer.segments(s["segments"], format_flamegraph=lambda text: text).splitlines()
    assert sum(int(line.split()[-1]) for line in lines) == stats["total_size"].value, lines[:5]
    assert viewer.memory(s["segments"], format_flamegraph=lambda text: text)


# ids: T2
def test_ring(snug):
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=20))
    result, s = recorded(snug, graph, options=("--memory-history-max", "300"))
    assert len(s["device_traces"][0]) == 300 and result.doc["memory_history"]["events_lost"] > 0
    assert s["allocator_settings"]["trace_alloc_overflowed"] is True
    held = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
    assert held and all(b["frames"] and b["category"] for b in held), held[:2]  # known without their events


# ids: T2
def test_out_of_memory(snug):
    """What is written is the moment of the failure, with what was held then."""
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(harness.CNN, train__max_steps=2, loader__batch_size=2048))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    options = ("--memory", "dynamic", "--memory-gib", (peak + peak // 50) / (1 << 30), "--memory-steps")
    result, s = recorded(snug, graph, rc=3, options=options)
    trace = s["device_traces"][0]
    assert "oom" in [e["action"] for e in trace] and result.doc["memory_history"]["ran_out"], result
    held = sum(seg["active_size"] for seg in s["segments"])
    assert held > peak // 4, (held, peak)  # nothing was given back before
    assert s["snug"]["limit_bytes"] > peak
    failed = [e for e in result.events if e["event"] == "memory" and "failed_at" in e]
    assert failed and failed[0]["batch_size"] == 2048 and failed[0]["reserved_bytes"] > 0, result.events[-5:]


# ids: T2
def test_out_of_memory_unasked(snug):
    """Without the option the state is written all the same when memory runs out, and nothing otherwise."""
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(harness.CNN, train__max_steps=2, loader__batch_size=2048))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    fits = snug.json("run", graph, "--memory", "dynamic")
    assert "memory_history" not in fits.doc and not os.path.exists(os.path.join(snug.home, "oom")), fits.doc
    result = snug.json("run", graph, "--memory", "dynamic", "--memory-gib", (peak + peak // 50) / (1 << 30))
    assert result.rc == 3, result
    path = result.doc["memory_history"]["path"]
    assert path.startswith(snug.home), path
    s = snapshot_rules.read(path)
    snapshot_rules.check(s)
    assert [e["action"] for e in s["device_traces"][0]] == ["oom", "snapshot"], s["device_traces"]
    held = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
    assert sum(b["size"] for b in held) > peak // 4, (peak, held)
    assert all(b["frames"] and b["category"] for b in held), held[:3]
    assert any(names(b["frames"])[0] == "model/l0 (SequentialModel) conv" for b in held), [names(b["frames"]) for b in held]


# ids: T1
def test_figures(snug):
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=3, train__accumulate_steps=2))
    for mode in ("planned", "dynamic"):
        result = snug.json("run", graph, "--memory", mode, "--memory-steps", "--memory-summary")
        doc, memory = result.doc, result.doc["memory"]
        assert memory["live_bytes_peak"] <= memory["reserved_bytes_peak"], memory
        assert memory["reserved_minus_live_bytes"] == memory["reserved_bytes"] - memory["live_bytes"], memory
        assert 0 < memory["live_bytes"] < memory["live_bytes_peak"] and memory["device"] == "cpu", memory
        if mode == "planned":
            assert memory["live_bytes_peak"] == memory["reserved_bytes_peak"] == doc["peak_bytes_planned"], doc
        assert doc["memory_summary"].count("\n") > 30 and "Allocated memory" in doc["memory_summary"]
        assert all(len(line) == 77 for line in doc["memory_summary"].splitlines() if line), doc["memory_summary"]
        steps = [e for e in result.events if e["event"] == "memory"]
        assert [e["step"] for e in steps] == [1, 2, 3], steps
        for e in steps:
            assert e["batch_size"] == 32 and e["input_shape"] == [32, 1, 28, 28] and e["precision"] == "fp32", e
            assert e["accumulate_steps"] == 2 and e["live_bytes"] <= e["live_bytes_peak"] <= e["reserved_bytes_peak"], e
        assert doc["metrics"]["memory"]["precision"] == "fp32"
    plain = snug.json("run", graph)
    assert "memory_summary" not in plain.doc and not [e for e in plain.events if e["event"] == "memory"]


# ids: T2 D1
def test_card(snug):
    """On a card the snapshot says which, how large it is, and what was others'."""
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(train__max_steps=2))
    env = {"SNUG_SIM_CARDS": "A:1GiB:sm80:others=100MiB"}
    for mode in ("planned", "dynamic"):
        result, s = recorded(snug, graph, options=("--device", "cuda:0", "--memory", mode), env=env)
        assert s["snug"]["device"] == "cuda:0" and s["snug"]["capacity_bytes"] == 1 << 30, s["snug"]
        assert s["snug"]["others_bytes"] == 100 * MIB, s["snug"]
        assert result.doc["memory"]["device"] == "cuda:0", result


# ids: T2
def test_wrong_paths(snug):
    graph = snug.write("g.json", harness.training_graph(train__max_steps=1))
    result = snug.json("run", graph, "--memory-history", "history.txt")
    assert result.rc == 2 and ".pickle" in result.doc["error"]["message"], result
    result = snug.json("run", graph, "--memory-history-max", "5")
    assert result.rc == 2 and "needs --memory-history" in result.doc["error"]["message"], result
    result = snug.json("run", graph, "--memory-history", "nowhere/history.json")
    assert result.rc == 1 and "nowhere" in result.doc["error"]["message"], result
