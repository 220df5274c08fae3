"""`snug run` as a user sees it: documents, display, stopping, memory."""
import os
import signal
import time

import harness


def test_run_document(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(validate=True, train__max_steps=0,
                                                            loader__batch_size=500))
    result = snug.json("run", graph)
    doc = result.doc
    assert result.rc == 0, result
    for key in ("metrics", "results", "peak_bytes_planned", "peak_bytes_measured", "host_bytes_planned",
                "rss_growth_bytes", "warnings", "facts"):
        assert key in doc, key
    assert doc["metrics"]["total_steps"] == 120 and doc["metrics"]["final_val_loss"] < 1.5, doc["metrics"]
    kinds = {event["event"] for event in result.events}
    assert {"config", "batch", "epoch", "plan"} <= kinds, kinds
    epoch = [event for event in result.events if event["event"] == "epoch"][0]
    assert 0.3 < epoch["val_accuracy"] <= 1, epoch


def test_run_text(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph())
    result = snug("run", graph)
    assert result.rc == 0, result
    for words in ("Memory bill", "by category", "by node", "predicted peak", "measured peak", "difference"):
        assert words in result.out, words
    assert "\r" not in result.err and "\033" not in result.out + result.err, result


# ids: A4 A9
def test_validation_is_planned_when_it_happens(snug):
    """The peak is in validation, which max_steps keeps from happening unless val_every_steps asks for it before."""
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(validate=True, val__batch_size=2000))
    peaks = {}
    for steps, every in ((3, 0), (3, 4), (3, 3), (0, 0)):
        done = snug.json("run", graph, "--set", "train.max_steps=%d" % steps, "--set", "train.val_every_steps=%d" % every,
                         "--set", "loader.batch_size=500")
        assert done.rc == 0 and done.doc["peak_bytes_planned"] == done.doc["peak_bytes_measured"], (steps, every, done)
        peaks[steps, every] = done.doc["peak_bytes_planned"]
    assert peaks[3, 0] == peaks[3, 4] < peaks[3, 3] == peaks[0, 0], peaks


# ids: A4
def test_one_loader_for_training_and_validation(snug):
    """Validation inside an epoch reads its own copy: the run is the one of two loaders with the same samples."""
    harness.need_fashion()
    losses = {}
    for name, source in (("one", "loader"), ("two", "val")):
        graph = harness.training_graph(validate=True, loader__batch_size=500, loader__shuffle=False, val__batch_size=500,
                                       train__max_steps=0, train__val_every_steps=25)
        graph["nodes"] = [n for n in graph["nodes"] if n["id"] not in (("test", "val") if name == "one" else ("test",))]
        graph["edges"] = [e for e in graph["edges"] if "test" not in (e["source"], e["target"]) and e["source"] != "val"]
        if name == "two":
            graph["edges"].append({"id": "v", "source": "data", "sourceHandle": "dataset", "target": "val", "targetHandle": "dataset"})
        graph["edges"].append({"id": "w", "source": source, "sourceHandle": "dataloader", "target": "train",
                               "targetHandle": "val_dataloader"})
        done = snug.json("run", snug.write(name + ".json", graph))
        assert done.rc == 0, done
        losses[name] = (done.doc["metrics"]["losses"], done.doc["metrics"]["val_losses"])
    assert losses["one"] == losses["two"], losses


# ids: P2 A9
def test_predicted_peak_is_the_measured_one(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(harness.CNN, loader__batch_size=64))
    for precision in ("fp32", "bf16", "fp16"):
        for accumulate in (1, 4):
            result = snug.json("run", graph, "--set", "TrainingLoop.precision=" + precision,
                               "--set", "train.accumulate_steps=%d" % accumulate, "--set", "train.max_steps=5")
            doc, what = result.doc, (precision, accumulate)
            assert result.rc == 0, (what, result)
            assert doc["peak_bytes_measured"] == doc["peak_bytes_planned"], (what, doc)
            assert doc["metrics"]["precision"] == precision, what
            planned = doc["peak_bytes_planned"] + doc["host_bytes_planned"]
            assert abs(doc["rss_growth_bytes"] - planned) <= 0.05 * planned + (16 << 20), (what, doc)


def wait_for(child, word):
    """Reads stderr until a line holds the word."""
    for line in child.stderr:
        if word in line:
            return
    raise AssertionError("the run ended before " + word.decode())


# ids: A7
def test_stop_writes_a_checkpoint(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(train__max_steps=0, train__epochs=200))
    for number in (signal.SIGINT, signal.SIGTERM):
        child = snug.start("run", graph, "--json")
        wait_for(child, b'"batch"')
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
        result = harness.Result(child.returncode, out.decode(), err.decode())
        assert result.rc == 130 and result.doc["status"] == "interrupted", result
        assert result.doc["error"]["code"] == "interrupted", result
        path = result.doc["metrics"]["interrupt_checkpoint"]
        assert os.path.exists(path), path
    resumed = snug.json("run", graph, "--resume", "auto", "--set", "train.max_steps=1")
    assert resumed.rc == 0 and "resumed_from" in resumed.doc, resumed


def test_second_stop_ends_at_once(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph(train__max_steps=0, train__epochs=200))
    child = snug.start("run", graph)
    wait_for(child, b"training")
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    begin = time.time()
    child.communicate(timeout=20)
    assert child.returncode == 130 and time.time() - begin < 10


def test_reader_that_leaves_does_not_kill_the_run(snug):
    harness.need_fashion()
    graph = snug.write("graph.json", harness.training_graph())
    child = snug.start("run", graph, "--set", "train.max_steps=5")
    child.stderr.close()
    child.stdout.close()
    assert child.wait(timeout=60) in (0, 1)


def test_missing_data_says_where_to_put_it(snug):
    graph = snug.write("graph.json", harness.training_graph(data__name="CIFAR10", model=harness.layers(
        ("Flatten", {}), ("Linear", {"in_features": 3072, "out_features": 10}))))
    result = snug.json("run", graph)
    error = result.doc["error"]
    assert result.rc == 1 and error["code"] == "not_found" and error["node_id"] == "data", result
    assert "CIFAR" in error["message"] + str(error["hint"]) and error["detail"], result


def test_visualize_writes_pictures(snug):
    harness.need_fashion()
    graph = harness.training_graph(train__max_steps=0, loader__batch_size=1000, train__epochs=2)
    for kind in ("line", "histogram", "heatmap", "image"):
        graph["nodes"].append({"id": kind, "type": "Visualize", "position": {"x": 0, "y": 0},
                               "data": {"params": {"title": "a < b", "plot_type": kind}}})
        graph["edges"].append({"id": kind, "source": "train", "sourceHandle": "losses", "target": kind,
                               "targetHandle": "data"})
    result = snug.json("run", snug.write("graph.json", graph))
    assert result.rc == 0, result
    for kind in ("line", "histogram", "heatmap", "image"):
        path = result.doc["results"][kind]["path"]
        head = open(path, "rb").read()
        assert os.path.dirname(path) == os.path.join(snug.home, "images"), path
        assert head.startswith(b"\x89PNG" if kind in ("heatmap", "image") else b"<svg"), path
        assert b"a &lt; b" in head or kind in ("heatmap", "image"), path
