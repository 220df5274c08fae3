"""Offloading on simulated cards: the same bits, less on the card, and what lies on the host planned and measured."""
import glob
import json
import os
import shutil

from harness import layers, need_fashion, training_graph
from test_levers import LOOP, SMALL, Trainer

CARD = "Card:2GiB:sm89:context=10MiB"
STATE = LOOP + "optimizer_state=host"
ACTIVATIONS = LOOP + "offload_activations=true"


def trainer_on_card(snug, model=SMALL, batch=4, **more):
    snug.env["SNUG_SIM_CARDS"] = CARD
    return Trainer(snug, model, 32, batch, **more)


def check_memory(doc):
    assert doc["peak_bytes_measured"] == doc["peak_bytes_planned"], doc
    assert doc["devices"][0]["held_bytes_peak"] == doc["peak_bytes_planned"], doc["devices"]
    assert doc["offload_bytes_measured"] == doc["offload_bytes_planned"] > 0, doc


def plan(snug, trainer, *sets):
    done = snug.json("plan", trainer.graph(None), "--device", "cuda:0", *[x for s in sets for x in ("--set", s)])
    assert done.rc == 0, done
    return done.doc


# ids: L4
def test_state_on_host(snug):
    """AdamW's state beside the card: the peak falls by all of it, the numbers are the same, alone and with other levers."""
    trainer = trainer_on_card(snug)
    before, after = plan(snug, trainer), plan(snug, trainer, STATE)
    state = before["by_category"]["optimizer_state"]
    assert before["peak_bytes"] - after["peak_bytes"] == state == after["savings"]["optimizer_state"], after
    assert after["persistent_by_category"]["optimizer_state"] == 0 and after["offload_bytes_planned"] >= state - 64 * 100
    rows = [r for r in after["host"] if r["what"] == "optimizer state"]
    assert [r["bytes"] for r in rows] == [after["offload_bytes_planned"]] and rows[0]["node"] == "train", after["host"]
    assert after["host_bytes_planned"] == before["host_bytes_planned"] + rows[0]["bytes"]
    for sets in ([], [LOOP + "accumulate_steps=2", LOOP + "grad_clip_norm=0.5"], [LOOP + "update_in_backward=true"],
                 [LOOP + "checkpointing=blocks", LOOP + "precision=bf16"], [LOOP + "parameter_dtype=bfloat16"]):
        plain = trainer(sets, "--device", "cuda:0")
        doc, weights = trainer(sets + [STATE], "--device", "cuda:0", "--json")
        check_memory(doc)
        assert weights == plain[1], "%s: other weights" % sets
        assert doc["peak_bytes_planned"] < plain[0]["peak_bytes_planned"], sets
        assert not [w for w in doc["warnings"] if w["kind"] == "offload"], doc["warnings"]
    plain = trainer([], "--device", "cuda:0")
    doc, weights = trainer([STATE], "--device", "cuda:0", "--memory", "dynamic")
    assert weights == plain[1] and doc["offload_bytes_measured"] == doc["offload_bytes_planned"]
    assert doc["peak_bytes_measured"] < plain[0]["peak_bytes_measured"] - state // 2, doc


# ids: L4
def test_activations_on_host(snug):
    """A language model's activations wait beside the card: the same bits, less than half of them at the peak."""
    trainer = trainer_on_card(snug, dict(SMALL, n_layers=6), 16)
    before, after = plan(snug, trainer), plan(snug, trainer, ACTIVATIONS)
    assert after["by_category"]["activations"] < before["by_category"]["activations"] / 4, after["by_category"]
    assert after["savings"]["offload_activations"] == before["peak_bytes"] - after["peak_bytes"]
    rows = {r["what"]: r["bytes"] for r in after["host"] if r["node"] == "train"}
    assert rows == {"activations": after["offload_bytes_planned"]}, after["host"]
    assert after["transfer_bytes"] >= 2 * (before["peak_bytes"] - after["peak_bytes"]) * 0.9, after["transfer_bytes"]
    rest = plan(snug, trainer, ACTIVATIONS, LOOP + "checkpointing=blocks")
    assert rest["offload_bytes_planned"] < after["offload_bytes_planned"] / 2, "what is computed again does not wait"
    for sets in ([], [LOOP + "accumulate_steps=2", LOOP + "grad_clip_norm=0.5"], [LOOP + "update_in_backward=true", STATE],
                 [LOOP + "checkpointing=blocks"], [LOOP + "checkpointing=selective", LOOP + "precision=bf16"],
                 [LOOP + "loss_chunk_tokens=24", LOOP + "precision=fp16"], [LOOP + "parameter_dtype=bfloat16", STATE]):
        plain = trainer([s for s in sets if s != STATE], "--device", "cuda:0")
        doc, weights = trainer(sets + [ACTIVATIONS], "--device", "cuda:0")
        check_memory(doc)
        assert weights == plain[1], "%s: other weights" % sets
        assert doc["peak_bytes_planned"] < plain[0]["peak_bytes_planned"], sets
        doc, weights = trainer(sets + [ACTIVATIONS], "--device", "cuda:0", "--memory", "dynamic")
        assert weights == plain[1] and doc["offload_bytes_measured"] == doc["offload_bytes_planned"], sets


# ids: L4
def test_activations_of_pictures_on_host(snug):
    """Blocked layouts, statistics of batches, dropout, a short last batch and validation between; both levers."""
    need_fashion()
    snug.env["SNUG_SIM_CARDS"] = CARD
    block = [("BatchNorm2d", {"num_features": 16}), ("ReLU", {}),
             ("Conv2d", {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "padding": 1})]
    rows = [("Conv2d", {"in_channels": 1, "out_channels": 16, "kernel_size": 3, "padding": 1})] + 3 * block
    rows += [("MaxPool2d", {"kernel_size": 4}), ("Dropout", {"p": 0.1}), ("Flatten", {}),
             ("Linear", {"in_features": 784, "out_features": 10})]
    results = []
    for levers in ({}, {"train__offload_activations": True, "train__optimizer_state": "host"}):
        graph = training_graph(layers(*rows), validate=True, train__max_steps=5, train__val_every_steps=2,
                               loader__batch_size=48, **levers)
        saved(graph)
        results.append(run(snug, graph))
    (plain, weights), (doc, offloaded) = results
    assert weights == offloaded and doc["metrics"]["val_losses"] == plain["metrics"]["val_losses"]
    check_memory(doc)
    assert doc["peak_bytes_planned"] < plain["peak_bytes_planned"] * 0.85, (doc["peak_bytes_planned"], plain["peak_bytes_planned"])


# ids: L4
def test_state_on_host_resumes(snug):
    """A checkpoint holds the state where it lies; a run resumes from one of either kind, bit by bit."""
    trainer = trainer_on_card(snug, updates=4)
    every = [LOOP + "checkpoint_every_steps=2"]
    whole = trainer([], "--device", "cuda:0")[1]
    for first, second in (([STATE], [STATE]), ([STATE], []), ([], [STATE])):
        trainer(first + every + [LOOP + "max_steps=2"], "--device", "cuda:0")
        models = os.path.join(snug.home, "models")
        saved = glob.glob(models + "/**/*.pt", recursive=True)
        file = next(f for f in saved if not f.endswith("after.pt"))
        doc, weights = trainer(second + [LOOP + "max_steps=4"], "--device", "cuda:0", "--resume", file)
        assert doc["resumed_from"] and weights == whole, (first, second)
        shutil.rmtree(models)


# ids: L4
def test_two_loops(snug):
    """A second loop goes on from the first one's weights and state, wherever each keeps its own."""
    trainer = trainer_on_card(snug, batch=8)
    graph = json.load(open(trainer.graph(None)))
    graph["nodes"].append({"id": "then", "type": "TrainingLoop", "position": {"x": 0, "y": 0},
                           "data": {"params": {"epochs": 1, "max_steps": 3}}})
    for e in graph["edges"]:
        e["source"] = "then" if e["source"] == "train" else e["source"]
    for a, p in (("loader", "dataloader"), ("train", "model"), ("train", "optimizer"), ("loss", "loss_fn")):
        graph["edges"].append({"id": "then-" + p, "source": a, "sourceHandle": p, "target": "then", "targetHandle": p})
    plain = run(snug, graph)
    for loops in (["train"], ["then"], ["train", "then"]):
        for mode in ("planned", "dynamic"):
            sets = [w for i in loops for s in (STATE, ACTIVATIONS) for w in ("--set", s.replace("TrainingLoop", i))]
            doc, weights = run(snug, graph, *sets, "--memory", mode)
            assert weights == plain[1], (loops, mode)
            assert doc["offload_bytes_measured"] == doc["offload_bytes_planned"] > 0, doc
            assert mode == "dynamic" or doc["peak_bytes_measured"] == doc["peak_bytes_planned"], doc


# ids: L4
def test_offload_without_effect(snug):
    """On the CPU, and with nothing to move, the run says so; `fit` offers it on cards only."""
    trainer = trainer_on_card(snug)

    def warnings(*args, sets=(STATE,)):
        doc = trainer(list(sets), *args)[0]
        assert "offload_bytes_planned" not in doc, doc
        return [w["message"] for w in doc["warnings"] if w["kind"] == "offload"]

    assert warnings() == [
        "optimizer_state host has no effect on the CPU: the state lies in the host's memory already"]
    assert warnings("--device", "cuda:0", sets=(STATE, "Optimizer.type=SGD")) == [
        "optimizer_state host has no effect: this optimizer keeps no state"]
    assert warnings(sets=(ACTIVATIONS,)) == [
        "offload_activations has no effect on the CPU: they lie in the host's memory already"]
    assert warnings("--device", "cuda:0", sets=(ACTIVATIONS, "DataLoader.batch_size=1")) == [
        "offload_activations has no effect: no activation of 64 KiB or more waits long enough for the backward pass"]
    budget = plan(snug, trainer, STATE)["peak_bytes"]
    found = snug.json("fit", trainer.graph(None), "--budget", budget, "--device", "cuda:0").doc
    ways = {tuple(w["set"]): w for w in found["groups"][0]["ways"]}
    way = ways[("train.optimizer_state=host",)]
    assert way["peak_bytes"] == budget and way["extra_transfer_bytes"] > way["saving_bytes"], way
    found = snug("fit", trainer.graph(None), "--budget", str(budget))
    assert "optimizer_state=host" not in found.out and "extra transfer" not in found.out, found
    assert "extra transfer" in snug("fit", trainer.graph(None), "--budget", budget, "--device", "cuda:0").out


def saved(graph):
    graph["nodes"].append({"id": "save", "type": "ModelSaver", "position": {"x": 0, "y": 0}, "data": {"params": {"path": "after.pt"}}})
    graph["edges"].append({"id": "s", "source": "train", "sourceHandle": "model", "target": "save", "targetHandle": "model"})
    return graph


def run(snug, graph, *args, **more):
    """The document, and the weights as saved."""
    done = snug.json("run", snug.write("g.json", graph), "--device", "cuda:0", *args, timeout=1800, **more)
    assert done.rc == 0, done
    with open(os.path.join(snug.home, "models", "after.pt"), "rb") as file:
        return done.doc, file.read()


def one_large_ten_tiny(sets):
    """One parameter that is updated in pieces (2^26 elements with SNUG_SOAK), ten of 3."""
    width = (1 << 26 if os.environ.get("SNUG_SOAK") else 9 << 18) // 784 + 1
    rows = [("Flatten", {}), ("Linear", {"in_features": 784, "out_features": width, "bias": False}), ("ReLU", {}),
            ("Linear", {"in_features": width, "out_features": 3, "bias": False})]
    rows += [("LayerNorm", {"normalized_shape": 3})] * 5 + [("Linear", {"in_features": 3, "out_features": 10})]
    return saved(training_graph(layers(*rows), train__max_steps=20, optimizer__type="AdamW", **sets))


# ids: case-T73
def test_copies_are_waited_for(snug):
    """Slow copies: a missing wait would be another weight. 20 updates, one large parameter and ten tiny ones."""
    need_fashion()
    delay = {"SNUG_TEST_COPY_DELAY_MS": "50" if os.environ.get("SNUG_SOAK") else "3"}
    snug.env["SNUG_SIM_CARDS"] = "Card:16GiB:sm89"
    host = {"train__optimizer_state": "host", "train__offload_activations": True}
    results = []
    for sets, env in (({}, {}), (host, delay), (host, {})):
        doc, weights = run(snug, one_large_ten_tiny(sets), env=env)
        results.append((doc["metrics"]["losses"], weights))
    assert results[0] == results[1] == results[2]
    trainer = trainer_on_card(snug, dict(SMALL, n_layers=4), 16)
    plain = trainer([], "--device", "cuda:0")
    snug.env.update(SNUG_TEST_COPY_DELAY_MS="1")
    doc, weights = trainer([STATE, ACTIVATIONS], "--device", "cuda:0")
    assert weights == plain[1] and doc["metrics"]["losses"] == plain[0]["metrics"]["losses"]
