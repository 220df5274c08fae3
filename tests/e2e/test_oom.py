"""NodeOOMError: on the CPU and on simulated cards, before the start and at an operator; its advice, applied."""
import json
import re

from harness import CNN, layers, need_fashion, training_graph

MIB, GIB = 1 << 20, 1 << 30
WIDE = layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 2000}), ("ReLU", {}),
              ("Linear", {"in_features": 2000, "out_features": 10}))


def card(capacity, sm=86, context=1):
    return {"SNUG_SIM_CARDS": "Small:%d:sm%d:context=%dMiB" % (capacity, sm, context)}


def apply(snug, graph, item, *more, **how):
    sets = [x for s in item["set"] for x in ("--set", s)]
    return snug.json("run", graph, *sets, *more, **how)


def texts(result):
    """The message's parts: what ran out, the advice line by line, the memory line, the original error."""
    error = result.doc["error"]
    assert result.rc == 3 and error["type"] == "NodeOOMError" and error["code"] == "out_of_memory", result
    head, advice, *memory, original = error["message"].split("\n\n")
    lines = advice.split("\n")
    assert lines[0] == "What to try, cheapest first:" and all(x.startswith("  - ") for x in lines[1:]), advice
    assert original.startswith("Original error: "), original
    return head, lines[1:], memory[0] if memory else None, original


# ids: O1 O4
def test_card_a_third_too_small(snug):
    """The demo on a card a third too small: refused before the start; what is marked sufficient fits and measures that."""
    need_fashion()
    graph = snug.example("fashion-cnn")
    steps = ("--set", "TrainingLoop.max_steps=4", "--set", "TrainingLoop.epochs=1")
    peak = snug.json("plan", graph, *steps).doc["peak_bytes"]
    env = card(peak * 2 // 3 + MIB)
    result = snug.json("run", graph, "--device", "cuda:0", *steps, env=env)
    head, advice, memory, original = texts(result)
    assert re.fullmatch(r"Node TrainingLoop \(\w+\) ran out of memory on cuda:0\.", head), head
    assert re.fullmatch(r"CUDA memory on cuda:0: 0\.00 GiB held by live tensors, 0\.00 GiB reserved by the caching "
                        r"allocator, 0\.00 GiB peak this process, 0\.0\d GiB on the card\.", memory), memory
    assert "the plan needs" in original and not any(e.get("event") == "batch" for e in result.events), result
    doc = result.doc["oom"]
    assert doc["before_start"] and doc["device"] == "cuda:0" and doc["memory"]["capacity_bytes"] == peak * 2 // 3 + MIB
    assert len(doc["advice"]) == len(advice)
    order = [a.get("lever") for a in doc["advice"] if a.get("lever")]
    known = ["SMALLER_BATCH", "EVAL_BATCH", "BF16", "MICRO_BATCH", "CHECKPOINT_SELECTIVE", "CHECKPOINT_BLOCKS"]
    assert order[0] == "SMALLER_BATCH" and [x for x in order if x in known] == [x for x in known if x in order], order
    enough = [a for a in doc["advice"] if a["sufficient"]]
    assert len(enough) >= 1, doc["advice"]
    for item in doc["advice"]:
        if not item.get("set"):
            continue
        again = apply(snug, graph, item, "--device", "cuda:0", *steps, env=env)
        assert (again.rc == 0) == bool(item["sufficient"]), (item, again)
        if again.rc == 0:
            assert again.doc["peak_bytes_planned"] == item["peak_bytes"] == again.doc["peak_bytes_measured"], (item, again)


# ids: O1 O2 O4
def test_budget_on_the_cpu_has_no_memory_line(snug):
    need_fashion()
    graph = snug.write("g.json", training_graph(model=WIDE))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    for command in ("plan", "run"):
        result = snug.json(command, graph, "--memory-gib", repr(peak / 2 / GIB))
        head, advice, memory, original = texts(result)
        assert head == "Node TrainingLoop (train) ran out of memory on cpu." and memory is None, head
        assert "--memory-gib" in original and "target.memory_gib" in original, original
        assert result.doc["error"]["node_id"] == "train" and "snug fit" in result.doc["error"]["hint"], result
    plain = snug("run", graph, "--memory-gib", repr(peak / 2 / GIB))
    assert plain.err.split("\n")[1].strip() == "What to try, cheapest first:", plain
    dumped = snug.json("plan", graph, "--memory-gib", repr(peak / 2 / GIB), "--dump-after", "layout")
    assert dumped.rc == 3 and dumped.doc["error"]["type"] == "NodeOOMError", dumped
    assert plain.rc == 3 and "What to try, cheapest first:" in plain.err and "  - make the model smaller" in plain.err, plain


# ids: O1
def test_advice_in_force_is_not_offered(snug):
    need_fashion()
    graph = snug.write("g.json", training_graph(model=WIDE, loader__batch_size=1, train__precision="bf16",
                                                train__checkpointing="blocks", train__optimizer_state="int8"))
    result = snug.json("run", graph, "--memory-gib", "0.004")
    texts(result)
    levers = {a.get("lever") for a in result.doc["oom"]["advice"]}
    assert not levers & {"SMALLER_BATCH", "MICRO_BATCH", "BF16", "FP16", "CHECKPOINT_BLOCKS", "CHECKPOINT_SELECTIVE",
                         "STATE_INT8"}, levers
    g = training_graph(model=WIDE)
    g["nodes"].append({"id": "adapter", "type": "snug:Adapter", "position": {"x": 0, "y": 0},
                       "data": {"params": {"kind": "lora"}}})
    for e in g["edges"]:
        if e["source"] == "model":
            e["source"] = "adapter"
    g["edges"].append({"id": "a", "source": "model", "sourceHandle": "model", "target": "adapter", "targetHandle": "model"})
    result = snug.json("run", snug.write("a.json", g), "--memory-gib", "0.001")
    head, advice, *_ = texts(result)
    assert advice and not any("LoRA" in line or "QLoRA" in line for line in advice), advice


# ids: O1 A10
def test_micro_batches_beside_batch_statistics(snug):
    need_fashion()
    graph = snug.write("g.json", training_graph(model=CNN, loader__batch_size=512))
    result = snug.json("run", graph, "--memory-gib", "0.004")
    rows = {a.get("lever"): a for a in result.doc["oom"]["advice"]}
    assert rows["MICRO_BATCH"]["numbers"] == "other", rows
    assert "batch statistics see the smaller batch" in result.doc["error"]["message"], result


# ids: P11 O1
def test_old_card_is_advised_fp16(snug):
    need_fashion()
    graph = snug.write("g.json", training_graph(model=CNN, loader__batch_size=2048))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    for sm, wanted, others in ((61, None, {"FP16", "BF16"}), (75, "FP16", {"BF16"}), (80, "BF16", {"FP16"})):
        result = snug.json("run", graph, "--device", "cuda", env=card(peak * 3 // 4 + MIB, sm))
        levers = {a.get("lever") for a in result.doc["oom"]["advice"]}
        assert (wanted is None or wanted in levers) and not others & levers, (sm, levers)


# ids: O1 O3 O4
def test_dynamic_storage_runs_out_at_an_operator(snug):
    """The plan fits the card, value by value does not: the operator, the allocator's figures, no retry."""
    need_fashion()
    graph = snug.write("g.json", training_graph(model=CNN, loader__batch_size=512, train__max_steps=3))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    env = card(peak + 2 * MIB)
    run = ("run", graph, "--device", "cuda")
    assert snug.json(*run, env=env).rc == 0
    result = snug.json(*run, "--memory", "dynamic", env=env)
    head, advice, memory, original = texts(result)
    assert head == "Node TrainingLoop (train) ran out of memory on cuda:0.", head
    doc = result.doc["oom"]
    m = doc["memory"]
    assert not doc["before_start"] and doc["storage"] == "dynamic", doc
    assert 0 < m["live_bytes"] <= m["reserved_bytes"] <= m["peak_bytes"] <= peak + MIB, m
    assert m["free_bytes"] + m["reserved_bytes"] + m["context_bytes"] == m["capacity_bytes"] == peak + 2 * MIB, m
    assert "need a segment of" in original and "memory dynamic" in advice[0] and "fits" in advice[0], advice
    assert sum(e.get("event") == "node" and e.get("node_id") == "train" for e in result.events) == 1, "no retry"
    assert "metrics" not in result.doc or not (result.doc["metrics"] or {}).get("total_steps"), result.doc


# ids: O3 case-T98
def test_batch_is_never_halved_quietly(snug):
    need_fashion()
    graph = snug.write("g.json", training_graph(loader__batch_size=512))
    before = open(graph).read()
    result = snug.json("run", graph, "--memory-gib", "0.001")
    assert result.rc == 3 and open(graph).read() == before, result
    assert result.doc["oom"]["before_start"] and not (result.doc.get("metrics") or {}).get("total_steps"), result.doc


# ids: O1 O4
def test_two_cards_each_with_its_own_peak(snug):
    """The node, the need and every peak are those of the card that is too small, whatever the other one holds."""
    need_fashion()
    g = training_graph(model=CNN, loader__batch_size=64, train__max_steps=2)
    g["nodes"] += [{"id": "test", "type": "Dataset", "position": {"x": 0, "y": 0},
                    "data": {"params": {"name": "FashionMNIST", "split": "test", "data_dir": "./data"}}},
                   {"id": "eval", "type": "EvaluateModel", "position": {"x": 0, "y": 0},
                    "data": {"params": {"device": "cuda:1", "batch_size": 4000}}}]
    g["edges"] += [{"id": "x1", "source": "train", "sourceHandle": "model", "target": "eval", "targetHandle": "model"},
                   {"id": "x2", "source": "test", "sourceHandle": "dataset", "target": "eval", "targetHandle": "dataset"}]
    graph = snug.write("g.json", g)

    def cards(first, second):
        return {"SNUG_SIM_CARDS": "A:%d:sm86:context=1MiB,B:%d:sm75:context=1MiB" % (first, second)}

    def peaks(doc):
        return {d["id"]: d["peak_bytes_planned"] for d in doc["devices"]}

    want = peaks(snug.json("plan", graph, "--device", "cuda:0", env=cards(GIB, GIB)).doc)
    assert want["cuda:1"] > 4 * want["cuda:0"], want
    for env, node, card_id in ((cards(want["cuda:0"] * 2 // 3 + MIB, GIB), "train", "cuda:0"),
                               (cards(GIB, want["cuda:1"] * 2 // 3 + MIB), "eval", "cuda:1"),
                               (cards(want["cuda:0"] * 2 // 3 + MIB, want["cuda:1"] * 2 // 3 + MIB), "train", "cuda:0")):
        result = snug.json("run", graph, "--device", "cuda:0", env=env)
        texts(result)
        doc = result.doc["oom"]
        assert (doc["node_id"], doc["device"], doc["need_bytes"]) == (node, card_id, want[card_id]), doc
        for item in doc["advice"]:
            if not item.get("set"):
                continue
            again = apply(snug, graph, item, "--device", "cuda:0", env=env)
            assert (again.rc == 0) == bool(item["sufficient"]), (item, again)
            if again.rc == 0:
                assert peaks(again.doc)[card_id] == item["peak_bytes"], (item, again)


# ids: O4 B6
def test_budget_on_top_of_a_card(snug):
    """The plan passes the budget, and the card has less than that: what is marked sufficient fits both."""
    need_fashion()
    graph = snug.write("g.json", training_graph(model=WIDE, train__max_steps=2))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    budget = ("--memory-gib", repr((peak - 4096) / GIB))
    env = card(peak * 2 // 3 + MIB)
    result = snug.json("run", graph, "--device", "cuda:0", *budget, env=env)
    texts(result)
    doc = result.doc["oom"]
    assert doc["room_bytes"] == peak * 2 // 3, doc
    for item in doc["advice"]:
        if item.get("set"):
            again = apply(snug, graph, item, "--device", "cuda:0", *budget, env=env)
            assert (again.rc == 0) == bool(item["sufficient"]), (item, again)


# ids: O4
def test_dynamic_storage_promises_nothing(snug):
    """No plan bounds what blocks of a few sizes take: only the static plan is marked sufficient."""
    need_fashion()
    graph = snug.write("g.json", training_graph(model=CNN, loader__batch_size=512, train__max_steps=3))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    env = card(peak + 2 * MIB)
    result = snug.json("run", graph, "--device", "cuda", "--memory", "dynamic", env=env)
    texts(result)
    rows = [a for a in result.doc["oom"]["advice"] if a["sufficient"]]
    assert [a["peak_bytes"] for a in rows] == [peak] and "lever" not in rows[0], rows
    rows = [a for a in result.doc["oom"]["advice"] if a.get("lever")]
    assert rows and all(a["sufficient"] is None for a in rows if a["peak_bytes"] <= peak + MIB), rows
    assert "fits as a static plan" in result.doc["error"]["message"], result


# ids: B6
def test_budget_refuses_at_an_operator(snug):
    """Value by value a budget is met while the run goes: the message says whose it is, unless the card is the tighter."""
    need_fashion()
    graph = snug.write("g.json", training_graph(model=CNN, loader__batch_size=512, train__max_steps=3))
    peak = snug.json("plan", graph).doc["peak_bytes"]
    budget = ("--memory", "dynamic", "--memory-gib", repr((peak + MIB) / GIB))
    for more, env, told in (((), {}, True), (("--device", "cuda"), card(GIB), True),
                            (("--device", "cuda"), card(peak + MIB + MIB // 2), False)):
        result = snug.json("run", graph, *budget, *more, env=env)
        *_, original = texts(result)
        assert not result.doc["oom"]["before_start"], result
        assert ("--memory-gib" in original and "target.memory_gib" in original) == told, original


# ids: O1
def test_figures_count_every_executor(snug):
    """Out of memory in an evaluation: what the trained model keeps is live, and its segments are reserved."""
    need_fashion()
    g = training_graph(model=WIDE, train__max_steps=2)
    g["nodes"] += [{"id": "test", "type": "Dataset", "position": {"x": 0, "y": 0},
                    "data": {"params": {"name": "FashionMNIST", "split": "test", "data_dir": "./data"}}},
                   {"id": "eval", "type": "EvaluateModel", "position": {"x": 0, "y": 0},
                    "data": {"params": {"device": "auto", "batch_size": 10000}}}]
    g["edges"] += [{"id": "x1", "source": "train", "sourceHandle": "model", "target": "eval", "targetHandle": "model"},
                   {"id": "x2", "source": "test", "sourceHandle": "dataset", "target": "eval", "targetHandle": "dataset"}]
    graph = snug.write("g.json", g)
    peak = snug.json("plan", graph).doc["peak_bytes"]
    result = snug.json("run", graph, "--device", "cuda", "--memory", "dynamic", env=card(peak + 2 * MIB))
    head, *_ = texts(result)
    m = result.doc["oom"]["memory"]
    assert head == "Node EvaluateModel (eval) ran out of memory on cuda:0.", head
    weights = 4 * (784 * 2000 + 2000 + 2000 * 10 + 10)
    assert weights <= m["live_bytes"] <= m["reserved_bytes"] <= m["peak_bytes"] <= m["capacity_bytes"], m
    assert m["free_bytes"] + m["reserved_bytes"] + m["context_bytes"] == m["capacity_bytes"], m
