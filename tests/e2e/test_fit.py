"""`snug fit`: every way that is printed leads to the printed peak, and a run under the budget succeeds."""
import json
import os

import harness

MIB = 1 << 20
WORDS = "bf16,fp16,half,state8,factored,batch"


def ways_of(doc):
    return [w for g in doc["groups"] for w in g["ways"]]


def sets(way):
    return [x for s in way["set"] for x in ("--set", s)]


def parameters(node, at=()):
    """Every value of a document by its path."""
    if isinstance(node, dict):
        return {k: v for key, value in node.items() for k, v in parameters(value, at + (key,)).items()}
    if isinstance(node, list):
        return {k: v for i, value in enumerate(node) for k, v in parameters(value, at + (i,)).items()}
    return {at: node}


def check_ways(snug, graph, budget, *allow):
    """Plans every way; nothing can be taken from one of several levers."""
    r = snug.json("fit", graph, "--budget", budget, *allow)
    assert r.rc == 0, r
    doc = r.doc
    assert ways_of(doc), doc
    for way in ways_of(doc):
        plan = snug.json("plan", graph, *sets(way)).doc
        assert plan["peak_bytes"] == way["peak_bytes"] <= budget, (way, plan["peak_bytes"])
        assert way["saving_bytes"] == doc["peak_bytes"] - way["peak_bytes"] and way["extra_compute"] >= 0
        assert way["extra_transfer_bytes"] == 0 and len(way["levers"]) >= 1
        if len(way["levers"]) == len(way["set"]) > 1:
            for i in range(len(way["set"])):
                less = {"set": way["set"][:i] + way["set"][i + 1:]}
                plan = snug.json("plan", graph, *sets(less))
                assert plan.rc != 0 or plan.doc["peak_bytes"] > budget, (way, i)
    return doc


def test_ways_lead_to_their_peaks(snug):
    for name, part, allow in (("resnet18-cifar", 0.8, ()), ("resnet18-cifar", 0.72, ("--allow", WORDS)),
                              ("fashion-cnn", 0.75, ("--allow", WORDS)), ("fashion-cnn", 0.5, ("--allow", WORDS)),
                              ("mlp", 0.97, ()), ("mlp", 0.6, ("--allow", "state8,factored"))):
        graph = os.path.join(snug.root, "examples", name, "graph.json")
        budget = int(snug.json("plan", graph).doc["peak_bytes"] * part)
        doc = check_ways(snug, graph, budget, *allow)
        if not allow:
            assert not doc["groups"][2]["ways"], "other numbers without --allow"
        for way in doc["groups"][0]["ways"]:
            assert all("checkpointing" in s or "update_in_backward" in s for s in way["set"]), way
        for way in doc["groups"][1]["ways"]:
            assert not any("precision" in s or "state" in s or "dtype" in s for s in way["set"]), way


def test_fitted_file(snug):
    """-o writes the graph with the first way and nothing else changed."""
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    fitted = os.path.join(snug.dir, "fitted.json")
    budget = int(snug.json("plan", graph).doc["peak_bytes"] * 0.7)
    doc = snug.json("fit", graph, "--budget", budget, "--allow", "state8", "-o", fitted).doc
    way = ways_of(doc)[0]
    assert doc["output"] == fitted and snug.json("plan", fitted).doc["peak_bytes"] == way["peak_bytes"]
    with open(graph) as a, open(fitted) as b:
        before, after = parameters(json.load(a)), parameters(json.load(b))
    changed = {path[-1]: after[path] for path in after if before.get(path) != after[path]}
    assert changed == {s.split("=")[0].split(".")[-1]: s.split("=")[1] for s in way["set"]}, changed
    assert all(path in after for path in before)
    assert snug("fit", graph, "--budget", "1GiB", "-o", fitted).rc == 0  # fits: the graph as it is
    with open(fitted) as f:
        assert parameters(json.load(f)) == before


# ids: T8
def test_run_under_the_budget(snug):
    if not os.path.isdir(harness.FASHION):
        raise harness.Skip("no Fashion-MNIST")
    fitted = os.path.join(snug.dir, "fitted.json")
    for name, part, allow in (("mlp", 0.97, []), ("mlp", 0.7, ["--allow", "state8"]), ("fashion-cnn", 0.75, ["--allow", "batch"])):
        graph = os.path.join(snug.root, "examples", name, "graph.json")
        short = ["--set", "TrainingLoop.epochs=1", "--set", "TrainingLoop.max_steps=3"]
        budget = int(snug.json("plan", graph).doc["peak_bytes"] * part)
        doc = snug.json("fit", graph, "--budget", budget, *allow, *short, "-o", fitted).doc
        gib = "%.12f" % (budget / (1 << 30))
        assert snug.json("run", graph, "--memory-gib", gib, *short).rc == 3
        run = snug.json("run", fitted, "--memory-gib", gib)
        assert run.rc == 0, run
        assert run.doc["peak_bytes_measured"] == run.doc["peak_bytes_planned"] == ways_of(doc)[0]["peak_bytes"], run


def test_no_way(snug):
    graph = os.path.join(snug.root, "examples/fashion-cnn/graph.json")
    r = snug.json("fit", graph, "--budget", "1MiB", "-o", os.path.join(snug.dir, "x.json"))
    assert r.rc == 1 and r.doc["error"]["code"] == "failed" and not ways_of(r.doc), r
    assert r.doc["least_peak_bytes"] > MIB and not os.path.exists(os.path.join(snug.dir, "x.json"))
    assert sum(r.doc["least"]["by_category"].values()) == r.doc["least_peak_bytes"]
    assert "activations" in r.doc["error"]["detail"] and "by node" in r.doc["error"]["detail"], r
    assert "--allow" in r.doc["error"]["hint"] and "bf16" in r.doc["allow_left"].split(","), r
    text = snug("fit", graph, "--budget", "1MiB")
    assert text.rc == 1 and "no way" in text.out and "least peak" in text.err, text


def test_wrong_use(snug):
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    for words in ([], ["--budget", "0"], ["--budget", "much"], ["--budget", "1MiB", "--allow", "magic"],
                  ["--budget", "1MiB", "--allow", "bf16,,half"]):
        assert snug.json("fit", graph, *words).rc == 2, words
    assert snug.json("fit", "/nowhere.json", "--budget", "1MiB").rc == 1
    assert snug.json("fit", graph, "--budget", "1MiB", "--set", "x.y=1").rc == 1


def test_adapters(snug):
    """lora and qlora insert a node between the model and what it feeds; nothing else changes but savers that merge."""
    graph = os.path.join(snug.root, "examples/mlp/graph.json")
    fitted = os.path.join(snug.dir, "fitted.json")
    budget = int(snug.json("plan", graph).doc["peak_bytes"] * 0.6)
    if snug("nodes", "snug:Adapter").rc != 0:
        raise harness.Skip("no snug:Adapter")
    for word in ("lora", "qlora"):
        r = snug.json("fit", graph, "--budget", budget, "--allow", word, "-o", fitted)
        assert r.rc == 0, r
        way = r.doc["groups"][2]["ways"][0]
        assert len(way["insert"]) == 1 and way["insert"][0].startswith("model|model|snug:Adapter|kind=" + word), way
        assert snug.json("plan", fitted).doc["peak_bytes"] == way["peak_bytes"] <= budget, way
        with open(graph) as a, open(fitted) as b:
            before, after = json.load(a), json.load(b)
        added = [n for n in after["nodes"] if n["id"] not in {m["id"] for m in before["nodes"]}]
        assert len(added) == 1 and added[0]["type"] == "snug:Adapter", added
        assert len(after["edges"]) == len(before["edges"]) + 1
        assert not [e for e in after["edges"] if e["source"] == "model" and e["target"] != added[0]["id"]], after["edges"]
        text = snug("fit", graph, "--budget", budget, "--allow", word)
        assert "insert snug:Adapter with kind=" + word in text.out, text


def test_unusual_graphs(snug):
    """No training: nothing is needed, which fits. Two loops over one loader: its batch size is set once."""
    graph = harness.training_graph(harness.CNN, loader__batch_size=64)
    less = dict(graph, nodes=[n for n in graph["nodes"] if n["id"] in ("start", "model", "data", "loader")],
                edges=[e for e in graph["edges"] if e["target"] in ("model", "loader")])
    for args in (("--json",), ()):
        assert snug("fit", snug.write("less.json", less), "--budget", "1MiB", *args).rc == 0
    wires = [("train", "model", "optimizer2", "model"), ("train", "model", "train2", "model"),
             ("loader", "dataloader", "train2", "dataloader"), ("optimizer2", "optimizer", "train2", "optimizer"),
             ("loss2", "loss_fn", "train2", "loss_fn")]
    for n in [n for n in graph["nodes"] if n["id"] in ("optimizer", "loss", "train")]:
        graph["nodes"].append(dict(n, id=n["id"] + "2"))
    graph["edges"] += [{"id": "z" + b + q, "source": a, "sourceHandle": p, "target": b, "targetHandle": q} for a, p, b, q in wires]
    path = snug.write("two.json", graph)
    budget = int(snug.json("plan", path).doc["peak_bytes"] * 0.7)
    for way in ways_of(check_ways(snug, path, budget, "--allow", "bf16,batch")):
        assert len(set(way["set"])) == len(way["set"]), way
