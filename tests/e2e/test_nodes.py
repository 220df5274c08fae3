"""Nodes around the training loop: what they hand on, save and load."""
import json
import os

import harness


def grown(graph, nodes, wires):
    """`graph` with more nodes {id: (type, params)} and data edges; those that nothing feeds get a trigger."""
    fed = {b for _, _, b, _ in wires}
    for i, (kind, params) in nodes.items():
        graph["nodes"].append({"id": i, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params}})
        if i not in fed:
            graph["edges"].append({"id": "t-" + i, "source": "start", "target": i, "sourceHandle": "trigger",
                                   "targetHandle": "", "type": "trigger"})
    for n, (a, p, b, q) in enumerate(wires):
        graph["edges"].append({"id": "more%d" % n, "source": a, "sourceHandle": p, "target": b, "targetHandle": q})
    return graph


def test_evaluate_counts_every_sample(snug):
    harness.need_fashion()
    test = {"test": ("Dataset", {"name": "FashionMNIST", "split": "test", "data_dir": "./data"})}
    graph = grown(
        harness.training_graph(),
        dict(test, accuracy=("EvaluateModel", {"batch_size": 300}), save=("ModelSaver", {"path": "tiny.pt"}),
             show=("Print", {"label": "share"})),
        [("train", "model", "accuracy", "model"), ("test", "dataset", "accuracy", "dataset"),
         ("train", "model", "save", "model"), ("accuracy", "accuracy", "show", "value")])
    first = snug.json("run", snug.write("graph.json", graph))
    assert first.rc == 0, first
    results = first.doc["results"]
    assert results["accuracy"]["total"] == 10000, results["accuracy"]
    assert results["accuracy"]["correct"] == round(10000 * results["accuracy"]["accuracy"]) > 3000, results
    assert results["show"]["message"].startswith("[share] 0."), results["show"]
    # The saved weights alone give the same answer.
    graph = {"name": "again", "edges": [], "settings": {}, "nodes": [
        {"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]}
    grown(graph, dict(test, model=("SequentialModel", {"layers": harness.MLP}),
                      load=("ModelLoader", {"path": "tiny.pt"}), accuracy=("EvaluateModel", {"batch_size": 64})),
          [("model", "model", "load", "model"), ("load", "model", "accuracy", "model"),
           ("test", "dataset", "accuracy", "dataset")])
    second = snug.json("run", snug.write("again.json", graph))
    assert second.rc == 0, second
    assert second.doc["results"]["accuracy"] == results["accuracy"], second.doc["results"]


def test_tensors_and_inference(snug):
    harness.need_fashion()
    graph = grown(
        harness.training_graph(train__max_steps=2),
        {"batch": ("DatasetBatch", {"batch_size": 3}), "infer": ("Inference", {}), "scores": ("Print", {}),
         "labels": ("Print", {}), "typed": ("TensorInput", {
             "shape": "2,2", "dtype": "int64", "value_mode": "explicit", "values": [[1, 2], [3, 4]]}),
         "typed-out": ("Print", {}), "made": ("TensorCreate", {"shape": "3", "fill": "full", "value": 2.5}),
         "made-out": ("Print", {})},
        [("data", "dataset", "batch", "dataset"), ("batch", "images", "infer", "input"),
         ("train", "model", "infer", "model"), ("infer", "output", "scores", "value"),
         ("batch", "labels", "labels", "value"), ("typed", "tensor", "typed-out", "value"),
         ("made", "tensor", "made-out", "value")])
    # What only hangs on a node that feeds others is a draft, unless it is triggered.
    graph["edges"].append({"id": "t-labels", "source": "start", "target": "labels", "sourceHandle": "trigger",
                           "targetHandle": "", "type": "trigger"})
    result = snug.json("run", snug.write("graph.json", graph))
    assert result.rc == 0, result
    said = {i: r["message"] for i, r in result.doc["results"].items() if "message" in r}
    assert said["typed-out"].endswith("[1, 2, 3, 4]") and said["made-out"].endswith("[2.5, 2.5, 2.5]"), said
    assert said.get("labels", "").endswith("[9, 0, 0]"), said  # the first three of Fashion-MNIST
    assert "[3, 10]" in said["scores"] or "3,10" in said["scores"], said


# ids: A4 case-T41
def test_checkpoint_nodes_go_on(snug):
    """One epoch, saved, loaded, one more: the losses of two epochs at once."""
    harness.need_fashion()
    settings = dict(train__max_steps=0, loader__batch_size=500, data__split="test")
    whole = snug.json("run", snug.write("whole.json", harness.training_graph(train__epochs=2, **settings)))
    graph = grown(
        harness.training_graph(train__epochs=1, **settings), {"save": ("CheckpointSaver", {"path": "half.pt"})},
        [("train", "model", "save", "model"), ("train", "optimizer", "save", "optimizer"),
         ("train", "losses", "save", "losses")])
    half = snug.json("run", snug.write("half.json", graph))
    assert half.rc == 0, half
    graph = grown(
        harness.training_graph(train__epochs=2, **settings), {"load": ("CheckpointLoader", {"path": "half.pt"})},
        [("model", "model", "load", "model"), ("optimizer", "optimizer", "load", "optimizer"),
         ("load", "model", "train", "model"), ("load", "optimizer", "train", "optimizer"),
         ("load", "epoch", "train", "start_epoch")])
    rest = snug.json("run", snug.write("rest.json", graph))
    assert rest.rc == 0, rest
    losses = whole.doc["metrics"]["losses"]
    assert half.doc["metrics"]["losses"] == losses[:1], (half.doc["metrics"], losses)
    assert rest.doc["metrics"]["losses"] == losses[1:], (rest.doc["metrics"], losses)


def chained(**params):
    """Two loops, the second of which goes on with the model and optimizer of the first."""
    graph = harness.training_graph(
        train__max_steps=0, loader__batch_size=500, loader__shuffle=False, data__split="test",
        optimizer__type="SGD", optimizer__lr=0.1, optimizer__momentum=0.9, **params)
    return grown(
        graph, {"again": ("TrainingLoop", {"epochs": 2})},
        [("train", "model", "again", "model"), ("train", "optimizer", "again", "optimizer"),
         ("loader", "dataloader", "again", "dataloader"), ("loss", "loss_fn", "again", "loss_fn")])


# ids: case-T41
def test_second_loop_goes_on_with_the_optimizer(snug):
    """One epoch and two more in a loop of their own: the losses of three epochs, momentum included."""
    harness.need_fashion()
    whole = harness.training_graph(
        train__max_steps=0, loader__batch_size=500, loader__shuffle=False, data__split="test",
        optimizer__type="SGD", optimizer__lr=0.1, optimizer__momentum=0.9, train__epochs=3)
    once = snug.json("run", snug.write("once.json", whole))
    assert once.rc == 0, once
    twice = snug.json("run", snug.write("twice.json", chained(train__epochs=1)))
    assert twice.rc == 0, twice
    losses = once.doc["metrics"]["losses"]
    assert twice.doc["results"]["train"]["losses"] == losses[:1], (twice.doc["results"], losses)
    assert twice.doc["results"]["again"]["losses"] == losses[1:], (twice.doc["results"], losses)
    assert twice.doc["peak_bytes_planned"] == twice.doc["peak_bytes_measured"], twice.doc


# ids: case-T41
def test_loaded_checkpoint_feeds_the_first_loop_only(snug):
    """CheckpointLoader, loop, loop: the second one does not fall back to the file."""
    harness.need_fashion()
    graph = grown(
        harness.training_graph(
            train__max_steps=3, loader__batch_size=500, data__split="test", optimizer__type="SGD",
            optimizer__momentum=0.9),
        {"save": ("CheckpointSaver", {"path": "start.pt"})},
        [("train", "model", "save", "model"), ("train", "optimizer", "save", "optimizer")])
    assert snug.json("run", snug.write("start.json", graph)).rc == 0
    graph = chained(train__epochs=1)
    graph["nodes"].append({"id": "load", "type": "CheckpointLoader", "position": {"x": 0, "y": 0},
                           "data": {"params": {"path": "start.pt"}}})
    for e in graph["edges"]:
        if e["target"] == "train" and e["sourceHandle"] in ("model", "optimizer"):
            e["source"] = "load"
    for port in ("model", "optimizer"):
        graph["edges"].append({"id": "l-" + port, "source": port, "sourceHandle": port, "target": "load",
                               "targetHandle": port})
    result = snug.json("run", snug.write("chain.json", graph))
    assert result.rc == 0, result
    first, second = (result.doc["results"][i]["losses"] for i in ("train", "again"))
    assert second[0] < first[0] - 0.05 and second[1] < second[0], (first, second)


def test_weights_held_without_training_are_planned(snug):
    """A graph that only saves and evaluates: its weights are in the plan, and what is measured is equal."""
    harness.need_fashion()
    start = {"name": "held", "edges": [], "settings": {}, "nodes": [
        {"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]}
    saver = {"model": ("SequentialModel", {"layers": harness.MLP}), "save": ("ModelSaver", {"path": "held.pt"})}
    wires = [("model", "model", "save", "model")]
    alone = snug.json("run", snug.write("alone.json", grown(json.loads(json.dumps(start)), saver, wires)))
    assert alone.rc == 0, alone
    weights = 4 * (784 * 32 + 32)
    assert alone.doc["peak_bytes_planned"] == alone.doc["peak_bytes_measured"] > weights, alone.doc
    assert sum(alone.doc["by_category"].values()) == alone.doc["peak_bytes_planned"], alone.doc
    more = dict(saver, data=("Dataset", {"name": "FashionMNIST", "split": "test"}),
                accuracy=("EvaluateModel", {"batch_size": 100}))
    graph = grown(start, more, wires + [("model", "model", "accuracy", "model"),
                                        ("data", "dataset", "accuracy", "dataset")])
    both = snug.json("run", snug.write("both.json", graph))
    assert both.rc == 0, both
    assert both.doc["peak_bytes_planned"] == both.doc["peak_bytes_measured"], both.doc
    assert both.doc["peak_bytes_planned"] > alone.doc["peak_bytes_planned"], both.doc


def test_errors_of_the_loss_name_its_node(snug):
    graph = harness.training_graph(loss__weight="1,2")
    text = json.dumps(graph).replace('"loss"', '"criterion"')
    result = snug.json("run", snug.write("weights.json", json.loads(text)))
    assert result.rc == 1 and "weight" in result.doc["error"]["message"], result
    assert result.doc["error"]["node_id"] == "criterion", result.doc["error"]


def test_image_folder_names_its_classes(snug):
    png = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
        "53de0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082")
    for name in ("dog", "ant", "cat"):
        os.makedirs(os.path.join(snug.dir, "pics/train", name))
        with open(snug.write("pics/train/%s/a.png" % name, ""), "wb") as f:
            f.write(png)
    graph = {"name": "classes", "edges": [], "settings": {}, "nodes": [
        {"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]}
    grown(graph, {"data": ("ImageFolderDataset", {"path": "pics"}), "show": ("Print", {})},
          [("data", "classes", "show", "value")])
    result = snug.json("run", snug.write("classes.json", graph))
    assert result.rc == 0, result
    message = result.doc["results"]["show"]["message"]
    assert message.index("ant") < message.index("cat") < message.index("dog"), message


def test_result_lists_the_warnings_of_the_data(snug):
    """What the readers log stands in the result too, once for each event."""
    os.makedirs(os.path.join(snug.dir, "data"))
    for name, head, size in (("images-idx3", b"\0\0\x08\x03\0\0\0\x40\0\0\0\x1c\0\0\0\x1c", 784),
                             ("labels-idx1", b"\0\0\x08\x01\0\0\0\x40", 1)):
        with open(os.path.join(snug.dir, "data", "train-%s-ubyte" % name), "wb") as f:
            f.write(head + bytes(64 * size))
    result = snug.json("run", snug.write("few.json", harness.training_graph()))
    assert result.rc == 0, result
    told = [e["message"] for e in result.events if e.get("event") == "warning"]
    assert any("64 samples" in m for m in told), told
    assert sorted(w["message"] for w in result.doc["warnings"]) == sorted(told), (result.doc["warnings"], told)


def test_savers_stay_below_the_models_folder(snug):
    """A graph of a stranger's writes nowhere else, be its path absolute or with dots."""
    for path in (os.path.join(snug.dir, "out.pt"), "../out.pt", "a/../../out.pt"):
        graph = {"name": "out", "edges": [], "settings": {}, "nodes": [
            {"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]}
        grown(graph, {"model": ("SequentialModel", {"layers": harness.MLP}), "save": ("ModelSaver", {"path": path})},
              [("model", "model", "save", "model")])
        result = snug.json("run", snug.write("out.json", graph))
        assert result.rc == 1 and "leaves the models folder" in result.doc["error"]["message"], (path, result)
        assert result.doc["error"]["node_id"] == "save", result
    assert not os.path.exists(os.path.join(snug.dir, "out.pt"))
