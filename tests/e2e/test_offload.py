"""Offloading on simulated cards: the same bits, less on the card, and what lies on the host planned and measured."""
import glob
import os
import shutil

from harness import layers, need_fashion, training_graph
from test_levers import LOOP, SMALL, Trainer

CARD = "Card:2GiB:sm89:context=10MiB"
STATE = LOOP + "optimizer_state=host"


def trainer_on_card(snug, **more):
    snug.env["SNUG_SIM_CARDS"] = CARD
    return Trainer(snug, SMALL, 32, 4, **more)


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
    budget = plan(snug, trainer, STATE)["peak_bytes"]
    found = snug.json("fit", trainer.graph(None), "--budget", budget, "--device", "cuda:0").doc
    ways = {tuple(w["set"]): w for w in found["groups"][0]["ways"]}
    way = ways[("train.optimizer_state=host",)]
    assert way["peak_bytes"] == budget and way["extra_transfer_bytes"] > way["saving_bytes"], way
    found = snug("fit", trainer.graph(None), "--budget", str(budget))
    assert "optimizer_state=host" not in found.out and "extra transfer" not in found.out, found
    assert "extra transfer" in snug("fit", trainer.graph(None), "--budget", budget, "--device", "cuda:0").out


def one_large_ten_tiny(sets):
    """One parameter of 2^20 elements (2^26 with SNUG_SOAK), ten of 3."""
    width = (1 << 26 if os.environ.get("SNUG_SOAK") else 1 << 20) // 784 + 1
    rows = [("Flatten", {}), ("Linear", {"in_features": 784, "out_features": width, "bias": False}), ("ReLU", {}),
            ("Linear", {"in_features": width, "out_features": 3, "bias": False})]
    rows += [("LayerNorm", {"normalized_shape": 3})] * 5 + [("Linear", {"in_features": 3, "out_features": 10})]
    graph = training_graph(layers(*rows), train__max_steps=20, optimizer__type="AdamW", **sets)
    graph["nodes"].append({"id": "save", "type": "ModelSaver", "position": {"x": 0, "y": 0}, "data": {"params": {"path": "after.pt"}}})
    graph["edges"].append({"id": "s", "source": "train", "sourceHandle": "model", "target": "save", "targetHandle": "model"})
    return graph


# ids: case-T73
def test_copies_are_waited_for(snug):
    """Slow copies: a missing wait would be another weight. 20 updates, one large parameter and ten tiny ones."""
    need_fashion()
    delay = {"SNUG_TEST_COPY_DELAY_MS": "50" if os.environ.get("SNUG_SOAK") else "3"}
    snug.env["SNUG_SIM_CARDS"] = "Card:16GiB:sm89"
    losses = []
    for sets, env in (({}, {}), ({"train__optimizer_state": "host"}, delay), ({"train__optimizer_state": "host"}, {})):
        done = snug.json("run", snug.write("g.json", one_large_ten_tiny(sets)), "--device", "cuda:0", env=env, timeout=1800)
        assert done.rc == 0, done
        with open(os.path.join(snug.home, "models", "after.pt"), "rb") as file:
            losses.append((done.doc["metrics"]["final_train_loss"], file.read()))
    assert losses[0] == losses[1] == losses[2]
