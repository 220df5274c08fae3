"""Random networks: what the plan says is what is measured, and where storage comes from changes nothing."""
import concurrent.futures
import json
import os
import random

import attack
import harness
import nets

SOAK = os.environ.get("SNUG_SOAK") == "1"
SEED = int(os.environ.get("SNUG_TEST_SEED", "1"))
ACTIVATIONS = ["ReLU", "GELU", "Sigmoid", "Tanh", "LeakyReLU", "ELU", "SiLU", "Mish", "SELU", "PReLU", "Hardswish"]
OPTIMIZERS = ["Adam", "SGD", "AdamW", "RMSprop", "Adagrad", "RAdam", "NAdam", "Rprop", "ASGD"]


OVERFLOW = "the loss was not finite"  # which a random net may come to


class Net:
    """A document of layers that grows, with the shape of one sample at its end."""

    def __init__(self, r, shape):
        self.r, self.shape, self.last = r, list(shape), "in"
        self.nodes = [{"id": "in", "type": "Input", "ports": [{"id": "x", "name": "x"}]}]
        self.edges, self.seen = [], []

    def put(self, kind, params, *sources):
        ident = "l%d" % len(self.nodes)
        self.nodes.append({"id": ident, "type": kind, "params": params})
        for source in sources or (self.last,):
            edge = {"source": source, "target": ident}
            if source == "in":
                edge["sourceHandle"] = "x"
            self.edges.append(edge)
        self.last = ident

    def image_layer(self):
        r, (c, h, w) = self.r, self.shape
        kind = r.choice(["conv", "conv", "norm", "act", "act", "pool", "up", "merge", "merge", "dropout", "adaptive"])
        if kind == "conv":
            k, s, p = r.randint(1, 5), r.randint(1, 3), r.randint(0, 2)
            groups = r.choice([1, 1, c, 2 if c % 2 == 0 else 1])
            out = groups * r.randint(1, max(1, 12 // groups))
            if min(h, w) + 2 * p < k:
                return
            self.put("Conv2d", {"in_channels": c, "out_channels": out, "kernel_size": k, "stride": s, "padding": p,
                                "groups": groups, "bias": r.random() < 0.7})
            self.shape = [out, (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1]
        elif kind == "norm":
            if h * w < 2:
                return
            which = r.choice(["BatchNorm2d", "GroupNorm", "InstanceNorm2d", "LayerNorm"])
            self.put(which, {"BatchNorm2d": {"num_features": c}, "InstanceNorm2d": {"num_features": c},
                             "GroupNorm": {"num_groups": r.choice([1, c]), "num_channels": c},
                             "LayerNorm": {"normalized_shape": r.choice([w, [h, w], [c, h, w]])}}[which])
        elif kind == "act":
            self.put(r.choice(ACTIVATIONS), {})
        elif kind == "pool":
            k, s = r.randint(2, 3), r.randint(1, 3)
            if min(h, w) < k:
                return
            self.put(r.choice(["MaxPool2d", "AvgPool2d"]), {"kernel_size": k, "stride": s})
            self.shape = [c, (h - k) // s + 1, (w - k) // s + 1]
        elif kind == "up":
            k, s, out = r.randint(1, 3), r.randint(1, 2), r.randint(1, 8)
            if h > 30:
                return
            self.put("ConvTranspose2d", {"in_channels": c, "out_channels": out, "kernel_size": k, "stride": s})
            self.shape = [out, (h - 1) * s + k, (w - 1) * s + k]
        elif kind == "adaptive":
            size = r.randint(1, 6)
            self.put(r.choice(["AdaptiveAvgPool2d", "AdaptiveMaxPool2d"]), {"output_size": size})
            self.shape = [c, size, size]
        elif kind == "dropout":
            self.put("Dropout", {"p": r.choice([0.1, 0.5, 0.9])})
        else:
            self.merge()

    def merge(self):
        """A residual, a product, or one beside the other, with any earlier value that fits."""
        fits = [n for n, shape in self.seen if shape == self.shape and n != self.last]
        if not fits:
            return
        other, kind = self.r.choice(fits), self.r.choice(["Add", "Multiply", "Subtract", "Mean", "Concat"])
        if kind == "Concat" and self.shape[0] > 20:
            kind = "Add"
        self.put(kind, {"dim": 1} if kind == "Concat" else {}, self.last, other)
        if kind == "Concat":
            self.shape[0] *= 2

    def vector_layer(self):
        r, n = self.r, self.shape[0]
        kind = r.choice(["linear", "linear", "act", "act", "dropout", "norm", "merge", "softmax"])
        if kind == "linear":
            out = r.choice([min(n, 300), r.randint(1, 70)])
            self.put("Linear", {"in_features": n, "out_features": out, "bias": r.random() < 0.8})
            self.shape = [out]
        elif kind == "act":
            self.put(r.choice(ACTIVATIONS), {})
        elif kind == "dropout":
            self.put("Dropout", {"p": 0.3})
        elif kind == "norm":
            self.put("LayerNorm", {"normalized_shape": n})
        elif kind == "softmax":
            self.put("Softmax", {})
        else:
            self.merge()

    def end(self, classes):
        self.put("Linear", {"in_features": self.shape[0], "out_features": classes})
        self.nodes.append({"id": "out", "type": "Output", "ports": [{"id": "y", "name": "y"}]})
        self.edges.append({"source": self.last, "target": "out", "targetHandle": "y"})
        return json.dumps({"version": 2, "nodes": self.nodes, "edges": self.edges})


def random_net(r, size):
    net = Net(r, (1, size, size))
    for _ in range(r.randint(0, 9)):
        net.image_layer()
        net.seen.append((net.last, list(net.shape)))
    net.put("Flatten", {})
    n = net.shape[0] * net.shape[1] * net.shape[2]
    net.shape, net.seen = [n], [(net.last, [n])]
    for _ in range(r.randint(0, 5)):
        net.vector_layer()
        net.seen.append((net.last, list(net.shape)))
    return net.end(10)


def random_graph(r, home):
    size = r.choice([28, 28, r.randint(3, 36)])
    batch = r.choice([1, 2, 3, 5, 8, 13])
    graph = attack.saving_graph(
        random_net(r, size), loader__batch_size=batch, loader__drop_last=r.random() < 0.3,
        loader__num_workers=r.choice([0, 0, 1, 2]), optimizer__type=r.choice(OPTIMIZERS), optimizer__lr=1e-4,
        train__max_steps=0, train__epochs=1, train__accumulate_steps=r.choice([1, 1, 2, 3]),
        train__precision=r.choice(["fp32", "fp32", "bf16", "fp16"]), train__grad_clip_norm=r.choice([0, 0, 1.0]),
        train__log_update_ratio=r.random() < 0.2, validate=r.random() < 0.3, train__early_stopping_patience=r.choice([0, 0, 3]))
    if size != 28:
        attack.add(graph, "fit", "Transform", {"resize": size}, ("data", "dataset", "fit", "dataset"))
        [e for e in graph["edges"] if e["target"] == "loader"][0]["source"] = "fit"
        if any(n["id"] == "test" for n in graph["nodes"]):
            attack.add(graph, "fit2", "Transform", {"resize": size}, ("test", "dataset", "fit2", "dataset"))
            [e for e in graph["edges"] if e["target"] == "val"][0]["source"] = "fit2"
    return graph


def one(snug, i, make=random_graph):
    """What is wrong with random graph number i, or None."""
    r = random.Random(SEED * 100000 + i)
    path = snug.write("graph-%d.json" % i, make(r, snug.home))
    results = []
    for mode in ("planned", "dynamic"):
        home = os.path.join(snug.dir, "home-%d-%s" % (i, mode))
        env = dict(attack.SANITIZERS, SNUG_HOME=home)
        result = snug("run", path, "--json", "--threads", 1, "--memory", mode, env=env)
        doc = result.doc
        if result.rc:
            if doc["error"]["code"] == "failed" and "finite" in doc["error"]["message"]:
                return OVERFLOW
            return "%s: %r" % (mode, doc["error"])
        if mode == "planned" and doc["peak_bytes_planned"] != doc["peak_bytes_measured"]:
            return "planned %d, measured %d" % (doc["peak_bytes_planned"], doc["peak_bytes_measured"])
        results.append((doc["metrics"]["final_train_loss"],
                        attack.weights(os.path.join(home, "models", "final.safetensors"))))
        if mode == "planned" and i % 5 == 0:
            plan = snug("plan", path, "--json", "--threads", 1, env=env).doc
            if plan["peak_bytes"] != doc["peak_bytes_planned"] or sum(plan["by_category"].values()) != plan["peak_bytes"]:
                return "`plan` says %r, `run` %d" % (plan["peak_bytes"], doc["peak_bytes_planned"])
            if not 0 < plan["lower_bound_bytes"] <= plan["peak_bytes"]:
                return "lower bound %d, peak %d" % (plan["lower_bound_bytes"], plan["peak_bytes"])
    return None if results[0] == results[1] else "planned and dynamic storage give other weights"


def check_networks(snug, count, make):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda i: one(snug, i, make), range(count)))
    wrong = ["graph %d (seed %d): %s" % (i, SEED, text) for i, text in enumerate(results) if text and text != OVERFLOW]
    assert not wrong, "%d of %d:\n%s" % (len(wrong), count, "\n".join(wrong))
    assert results.count(OVERFLOW) < count / 5, results.count(OVERFLOW)


# ids: A9
def test_random_networks(snug):
    attack.fashion(snug, 31)
    attack.fashion(snug, 11, split="test")
    check_networks(snug, 3000 if SOAK else 300, random_graph)


# ids: A9
def test_random_sequence_networks(snug):
    """Recurrent layers, attention, experts, under random levers and adapters."""
    attack.fashion(snug, 31)
    attack.fashion(snug, 11, split="test")
    check_networks(snug, 1000 if SOAK else 80, lambda r, _: nets.sequence_graph(r))


# ids: A9
def test_random_language_models(snug):
    """CausalLMModel in random shapes, under random levers and adapters."""
    nets.tokenizer_file(snug)
    nets.tokens_file(snug)
    check_networks(snug, 1000 if SOAK else 80, lambda r, _: nets.random_text_graph(r))


# ids: P2 A9
def test_smallest_budget_is_the_plan(snug):
    attack.fashion(snug, 64)
    models = {"mlp": harness.MLP, "cnn": harness.CNN}
    models.update({"random %d" % i: random_net(random.Random(i), 28) for i in range(2 if not SOAK else 20)})
    for name, model in models.items():
        graph = snug.write("graph.json", harness.training_graph(model, loader__batch_size=16, train__max_steps=2))
        peak = snug.json("plan", graph).doc["peak_bytes"]

        def fits(size, command="run"):
            result = snug.json(command, graph, "--memory-gib", "%.17g" % (size / 2 ** 30))
            assert result.rc in (0, 3), (name, size, result)
            if result.rc == 3:
                text = json.dumps(result.doc["error"])
                assert result.doc["error"]["code"] == "out_of_memory" and str(peak) in text and str(size) in text, text
                if command == "run":
                    assert not any(e["event"] == "batch" for e in result.events), "it started"
                    assert result.doc["peak_bytes_planned"] == peak and result.doc["by_category"], result
            return result.rc == 0

        for command in ("run", "plan"):
            for below in (1, 2, 63, 64, 4096, peak // 2, peak - 1):
                assert not fits(peak - below, command), (name, command, peak, below)
            for above in (0, 1, 1 << 20):
                assert fits(peak + above, command), (name, command, peak, above)
        low, high = 1, 2 * peak  # until it fits
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle, "plan") else (middle + 1, high)
        assert low == peak, (name, low, peak)


# ids: P2 A9
def test_demo_memory_is_what_was_planned(snug):
    harness.need_fashion()
    for precision in ("fp32", "bf16", "fp16"):
        for accumulate in (1, 4):
            result = snug.json("run", snug.example("fashion-cnn"), "--set", "TrainingLoop.precision=" + precision,
                               "--set", "TrainingLoop.accumulate_steps=%d" % accumulate,
                               "--set", "TrainingLoop.max_steps=3")
            doc, what = result.doc, (precision, accumulate)
            assert result.rc == 0, (what, result)
            assert doc["peak_bytes_measured"] == doc["peak_bytes_planned"], (what, doc)
            both = doc["peak_bytes_planned"] + doc["host_bytes_planned"]
            assert abs(doc["rss_growth_bytes"] - both) <= 0.05 * both + (16 << 20), (
                what, both, doc["rss_growth_bytes"])
