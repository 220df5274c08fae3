"""The commands themselves: use, help, documents, exit statuses."""
import json
import os
import re
import resource
import time

import harness

COMMANDS = ("run", "runs", "start", "stop", "status", "workers", "sweep", "study", "agent", "keys", "completions", "plan", "fit", "validate", "nodes", "devices", "estimate", "tokenizer", "doctor", "replay")


def test_help_of_every_command(snug):
    top = snug("--help")
    assert top.rc == 0 and not top.err, top
    for command in COMMANDS:
        assert "  %s" % command in top.out, top
        page = snug(command, "--help")
        assert page.rc == 0 and "Usage: snug %s" % command in page.out and "Example" in page.out, page
        assert "help" in snug.json(command, "--help").doc
    assert snug("--version").out.startswith("snug ")


def test_wrong_use_is_exit_2(snug):
    for line in ("", "frobnicate", "run", "plan", "plan a b", "run g --nonsense", "run g --seed x",
                 "run g --memory-gib -1", "run g --memory sometimes", "devices here", "plan g --resume x",
                 "run g --set"):
        result = snug(*line.split())
        assert result.rc == 2 and not result.out and result.err.startswith("snug: error: "), (line, result)
        if line and line != "run g --set":
            document = snug.json(*line.split())
            assert document.rc == 2 and document.doc["error"]["code"] == "usage", (line, document)


def test_nearest_command_is_named(snug):
    assert "snug plan" in snug("plann", "g.json").err
    assert "--memory-gib" in snug("plan", "g.json", "--memory-gb", "3").err


def test_set_says_what_is_wrong(snug):
    graph = snug.example("fashion-cnn")
    for change, word in (("train.precison=bf16", "precision"), ("nobody.epochs=1", "nobody"),
                         ("train.epochs=many", "epochs"), ("train", "=")):
        result = snug.json("plan", graph, "--set", change)
        assert result.rc in (1, 2) and word in json.dumps(result.doc["error"]), (change, result)


# ids: N1
def test_malformed_graphs_are_explained(snug):
    """Every file of the malformed corpus, by validate and by run: one clear error, no crash."""
    folder = os.path.join(snug.root, "tests/corpus/graph")
    rows = re.findall(r'^X\("([^"]+)"', open(os.path.join(snug.root, "src/graph/corpus.def")).read(), re.M)
    assert len(rows) >= 40
    for name in rows:
        path = os.path.join(folder, name)
        result = snug.json("validate", path)
        assert result.rc in (0, 1), (name, result)
        run = snug.json("run", path)  # what no trigger reaches is a draft, and does not stop a run
        assert run.rc == 1 or (run.rc == 0 and not run.doc["metrics"]), (name, run)
        text = snug("validate", path)
        assert text.rc == result.rc and (text.out or text.err), (name, text)


def test_examples_are_valid(snug):
    for name in sorted(os.listdir(os.path.join(snug.root, "examples"))):
        result = snug.json("validate", snug.example(name))
        assert result.rc == 0 and result.doc["valid"] and result.doc["runnable"], (name, result)
        assert result.doc["issues"] == [], (name, result)


def test_plan_is_quick_and_touches_no_data(snug):
    graph = snug.write("graph.json", harness.training_graph(harness.CNN))
    best = 9
    for _ in range(3):
        begin = time.time()
        result = snug.json("plan", graph)
        best = min(best, time.time() - begin)
    doc = result.doc
    assert best < 0.2, "%.3f s" % best
    assert doc["peak_bytes"] == sum(doc["by_category"].values()), doc
    assert doc["peak_bytes"] == sum(row["bytes"] for row in doc["by_node"]) + doc["by_category"]["gaps"], doc
    assert 0 < doc["lower_bound_bytes"] <= doc["peak_bytes"], doc
    for key in ("version", "commit", "graph_key", "seed", "threads", "isa", "libraries"):
        assert key in doc["facts"], key
    nowhere = snug.write("nowhere.json", harness.training_graph(data__name="CIFAR10", model=harness.layers(
        ("Flatten", {}), ("Linear", {"in_features": 3072, "out_features": 10}))))
    assert snug.json("plan", nowhere).rc == 0, "plans need no data"


# ids: O4
def test_budget_below_the_plan_is_exit_3(snug):
    graph = snug.example("fashion-cnn")
    peak = snug.json("plan", graph).doc["peak_bytes"]
    for command in ("plan", "run"):
        result = snug.json(command, graph, "--memory-gib", (peak - 1000000) / 2**30)
        assert result.rc == 3 and result.doc["error"]["code"] == "out_of_memory", result
        assert "batch_size" in json.dumps(result.doc["error"]), result
    assert snug.json("plan", graph, "--memory-gib", (peak + 1000000) / 2**30).rc == 0
    assert snug("plan", graph, "--memory-gib", "0.001").rc == 3


def test_plan_shows_programs(snug):
    graph = snug.example("mlp")
    result = snug("plan", graph, "--dump-after", "all")
    assert result.rc == 0 and len(result.out.splitlines()) > 20, result
    assert "dump" in snug.json("plan", graph, "--dump-after", "all").doc
    wrong = snug("plan", graph, "--dump-after", "nonsense")
    assert wrong.rc == 2 and "recompute" in wrong.err, wrong
    none = snug("plan", graph, "--dump-after", "autocast")
    assert none.rc == 2 and "autocast" in none.err, none
    timeline = snug.json("plan", graph, "--timeline").doc
    for program in timeline["programs"]:
        assert len(program["timeline"]) == program["operators"], program["name"]
        assert max(program["timeline"]) <= program["peak_bytes"], program["name"]


def test_device_asked_for(snug):
    graph = snug.example("mlp")
    small = ("--set", "TrainingLoop.max_steps=1", "--json")
    result = snug("run", graph, "--device", "banana", *small)
    assert result.rc == 2 and "banana" in result.err + result.out, result
    result = snug("run", graph, "--device", "cuda:0", *small)
    assert result.rc == 0 and "--device asks for cuda:0" in result.err, result


def test_nodes_and_devices(snug):
    doc = snug.json("nodes").doc
    assert {"TrainingLoop", "Dataset"} <= {row["node_name"] for row in doc["nodes"]}
    assert snug.json("nodes", "TrainingLoop").doc["node"]["params"]
    wrong = snug.json("nodes", "TrainingLop")
    assert wrong.rc == 1 and "TrainingLoop" in wrong.doc["error"]["hint"], wrong
    device = snug.json("devices").doc["devices"][0]
    assert device["id"] == "cpu" and device["threads"] >= 1 and device["capacity_bytes"] > 0, device


def test_full_disk_on_stdout_is_an_error(snug):
    with open("/dev/full", "w") as full:
        result = snug("nodes", stdout=full)
    assert result.rc == 1 and "could not write" in result.err, result


def test_document_when_memory_is_exhausted(snug):
    """The Nth allocation fails, for many N: either the answer, or a document that says why not."""
    graph = snug.example("fashion-cnn")
    seen = set()
    for n in list(range(1, 40)) + list(range(40, 4000, 97)):
        result = snug("plan", graph, "--json", env={"SNUG_FAIL_ALLOC": str(n)})
        assert result.rc in (0, 3), (n, result)
        doc = result.doc
        assert doc["schema"] == 1, (n, result)
        if result.rc == 3:
            assert doc["status"] == "failed" and doc["error"]["code"] == "out_of_memory", (n, result)
        seen.add(result.rc)
    assert 3 in seen


# ids: O2
def test_little_address_space(snug):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(
        model=harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 100000}),
                             ("Linear", {"in_features": 100000, "out_features": 10}))))
    result = snug("run", graph, "--json", preexec_fn=limit)
    assert result.rc == 3 and result.doc["error"]["code"] == "out_of_memory", result
