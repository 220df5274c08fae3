"""Whole runs of build/snug against a plain PyTorch loop: same weights, same batches, 100 updates.

The weights travel as a .pt state_dict through ModelLoader and ModelSaver, the data as IDX files,
the losses as batch events. Losses agree to 1e-4, final weights to 1e-3 of each tensor's norm: not
biases in front of a batch norm (their true gradient is 0), and for Rprop the losses only.
"""
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile

import torch
import torch.nn.functional as F

from harness import Skip

BATCH, BATCHES, EPOCHS = 8, 25, 4
LOSS_BOUND, WEIGHT_BOUND = 1e-4, 1e-3


# ---- models: a layers document and its PyTorch equivalent from one list ----

CNN = [("conv1", "Conv2d", {"in_channels": 1, "out_channels": 8, "kernel_size": 3, "stride": 2, "padding": 1}),
       ("norm1", "BatchNorm2d", {"num_features": 8}), ("relu1", "ReLU", {}),
       ("pool1", "MaxPool2d", {"kernel_size": 2, "stride": 2}),
       ("conv2", "Conv2d", {"in_channels": 8, "out_channels": 16, "kernel_size": 3, "padding": 1}),
       ("act2", "SiLU", {}), ("flat", "Flatten", {}),
       ("fc", "Linear", {"in_features": 784, "out_features": 10})]
MLP = [("flat", "Flatten", {}), ("fc1", "Linear", {"in_features": 784, "out_features": 32}), ("act1", "GELU", {}),
       ("fc2", "Linear", {"in_features": 32, "out_features": 16}), ("act2", "Tanh", {}),
       ("fc3", "Linear", {"in_features": 16, "out_features": 10})]


class Select(torch.nn.Module):
    def forward(self, x):
        return x[:, 0]


def torch_layer(kind, params):
    if kind == "SelectIndex":
        return Select()
    if kind == "Softmax":
        return torch.nn.Softmax(-1)
    return getattr(torch.nn, kind)(**params)


class Graph(torch.nn.Module):
    """The layers as a ModuleDict; `heads` are lists of layers on top of the trunk, one per output."""

    def __init__(self, trunk, heads):
        super().__init__()
        self.trunk, self.heads = trunk, heads
        self.layers = torch.nn.ModuleDict(
            {i: torch_layer(t, p) for part in [trunk] + heads for i, t, p in part})

    def forward(self, x):
        for i, _, _ in self.trunk:
            x = self.layers[i](x)
        outputs = []
        for head in self.heads:
            y = x
            for i, _, _ in head:
                y = self.layers[i](y)
            outputs.append(y)
        return outputs[0] if len(outputs) == 1 else outputs


def layers_document(trunk, heads):
    nodes = [{"id": "in", "type": "Input", "ports": [{"id": "p_in", "name": "x"}]}]
    edges = []

    def chain(part, source):
        for i, kind, params in part:
            nodes.append({"id": i, "type": kind, "params": params})
            edge = {"source": source or "in", "target": i}
            if not source:
                edge["sourceHandle"] = "p_in"
            edges.append(edge)
            source = i
        return source
    last = chain(trunk, None)
    ports = []
    for k, head in enumerate(heads):
        end = chain(head, last)
        ports.append({"id": "p_%d" % k, "name": "y%d" % k})
        edges.append({"source": end, "target": "out", "targetHandle": "p_%d" % k})
    nodes.append({"id": "out", "type": "Output", "ports": ports})
    return json.dumps({"version": 2, "nodes": nodes, "edges": edges})


# ---- data ----

def write_idx(path, tensor):
    with open(path, "wb") as f:
        f.write(struct.pack(">HBB", 0, 8, tensor.dim()) + struct.pack(">%dI" % tensor.dim(), *tensor.shape))
        f.write(tensor.contiguous().numpy().tobytes())


def make_data(folder, classes, count):
    """Blurred class patterns under noise, a third of the labels at random: something that trains,
    yet keeps losses well above 0, where a relative error would only measure rounding."""
    g = torch.Generator().manual_seed(5)
    patterns = F.interpolate(torch.rand(classes, 1, 5, 5, generator=g), 28, mode="bilinear")[:, 0]
    os.makedirs(folder, exist_ok=True)
    for stem in ("train", "t10k"):
        labels = torch.randint(0, classes, (count,), generator=g)
        images = patterns[labels] * 0.4 + torch.rand(count, 28, 28, generator=g) * 0.6
        images = (images * 255).to(torch.uint8)
        random = torch.randint(0, classes, (count,), generator=g)
        labels = torch.where(torch.rand(count, generator=g) < 0.35, random, labels)
        write_idx(os.path.join(folder, stem + "-images-idx3-ubyte"), images)
        write_idx(os.path.join(folder, stem + "-labels-idx1-ubyte"), labels.to(torch.uint8))
        if stem == "train":
            kept = images, labels
    # Dataset's samples: ToTensor, then Normalize(0.5, 0.5).
    return (kept[0].float()[:, None] / 255 - 0.5) / 0.5, kept[1]


# ---- one run ----

def node(i, kind, **params):
    return {"id": i, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params}}


def edge(source, out, target, into):
    return {"id": "%s.%s-%s" % (source, out, target), "source": source, "target": target, "sourceHandle": out,
            "targetHandle": into, "type": "data"}


def graph_file(trunk, heads, optimizer, loss, scheduler, loop):
    loop = dict({"epochs": EPOCHS, "device": "cpu", "batch_metrics": True, "log_interval": 1}, **loop)
    nodes = [node("start", "Start"), node("model", "SequentialModel", layers=layers_document(trunk, heads)),
             node("load", "ModelLoader", path="init.pt"), node("optimizer", "Optimizer", **optimizer),
             node("loss", "Loss", **loss), node("data", "Dataset", name="FashionMNIST", split="train", data_dir="data"),
             node("loader", "DataLoader", batch_size=BATCH, shuffle=False), node("train", "TrainingLoop", **loop),
             node("save", "ModelSaver", path="final.pt")]
    edges = [{"id": "go", "source": "start", "target": "model", "sourceHandle": "trigger", "targetHandle": "",
              "type": "trigger"},
             edge("model", "model", "load", "model"), edge("load", "model", "optimizer", "model"),
             edge("load", "model", "train", "model"), edge("optimizer", "optimizer", "train", "optimizer"),
             edge("loss", "loss_fn", "train", "loss_fn"), edge("data", "dataset", "loader", "dataset"),
             edge("loader", "dataloader", "train", "dataloader"), edge("train", "model", "save", "model")]
    if scheduler:
        nodes.append(node("schedule", "LRScheduler", **scheduler))
        edges += [edge("optimizer", "optimizer", "schedule", "optimizer"),
                  edge("schedule", "scheduler", "train", "lr_scheduler")]
    return {"name": "parity", "nodes": nodes, "edges": edges}


class Place:
    """A folder with data, weights and SNUG_HOME for the runs of one test."""

    def __init__(self, c, classes=10):
        self.c = c
        if not os.access(c.tool.snug, os.X_OK):
            raise Skip("there is no %s yet" % c.tool.snug)
        self.folder = tempfile.mkdtemp(prefix="snug-parity-")
        self.data = make_data(os.path.join(self.folder, "data", "FashionMNIST", "raw"), classes, BATCH * BATCHES)
        os.makedirs(os.path.join(self.folder, "home", "models"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def engine(self, graph, model):
        """(losses of the batches, final weights, the result document)"""
        models = os.path.join(self.folder, "home", "models")
        torch.save(model.state_dict(), os.path.join(models, "init.pt"))
        path = os.path.join(self.folder, "graph.json")
        with open(path, "w") as f:
            json.dump(graph, f)
        run = subprocess.run(
            [self.c.tool.snug, "run", path, "--local", "--json"], capture_output=True, text=True, timeout=300,
            env=dict(os.environ, SNUG_HOME=os.path.join(self.folder, "home"), OMP_NUM_THREADS="2"))
        try:
            document = json.loads(run.stdout)
        except ValueError:
            raise AssertionError("status %d, no document: %s" % (run.returncode, run.stderr[-500:]))
        if run.returncode or document["status"] != "succeeded":
            raise AssertionError("status %d: %s" % (run.returncode, document.get("error")))
        losses = []
        for line in run.stderr.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                if event.get("event") == "batch" and event.get("phase") != "val":
                    losses.append(event["loss"])
        return losses, torch.load(os.path.join(models, "final.pt")), document

    def torch_run(self, model, optimizer, loss, scheduler=None, per_update=False, plateau=False, accumulate=1,
                  clip=0.0):
        """The plain loop."""
        images, labels = self.data
        losses = []
        for _ in range(EPOCHS):
            epoch_losses = []
            for b in range(BATCHES):
                part = slice(b * BATCH, (b + 1) * BATCH)
                if b % accumulate == 0:
                    optimizer.zero_grad()
                value = loss(model(images[part]), labels[part])
                (value / accumulate).backward()
                epoch_losses.append(value.item())
                if (b + 1) % accumulate == 0 or b + 1 == BATCHES:
                    if clip:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    if scheduler and per_update:
                        scheduler.step()
            if scheduler and not per_update:
                scheduler.step(*([sum(epoch_losses) / BATCHES] if plateau else []))
            losses += epoch_losses
        return losses

    def compare(self, title, trunk, optimizer, loss=None, scheduler=None, heads=None, loop=None, weights=True,
                torch_loss=None, torch_optimizer=None, torch_scheduler=None, seed=11, **how):
        """Runs both and compares; dictionaries are the parameters of the nodes."""
        c = self.c
        if not heads:
            trunk, heads = trunk[:-1], [trunk[-1:]]
        torch.manual_seed(seed)
        model = Graph(trunk, heads)
        start = {n: t.clone() for n, t in model.state_dict().items()}
        graph = graph_file(trunk, heads, optimizer, loss or {"type": "CrossEntropyLoss"}, scheduler, loop or {})
        c.count += 1
        try:
            losses, final, document = self.engine(graph, model)
        except (AssertionError, subprocess.TimeoutExpired) as e:
            c.fail("%s: %s" % (title, e))
            return None
        model.load_state_dict(start)
        made = torch_optimizer(model.parameters())
        want = self.torch_run(model, made, torch_loss or F.cross_entropy,
                              torch_scheduler(made) if torch_scheduler else None, **how)
        if len(losses) != len(want):
            c.fail("%s: %d losses of batches, not %d" % (title, len(losses), len(want)))
            return document
        worst = max(range(len(want)), key=lambda i: abs(losses[i] - want[i]) / max(abs(want[i]), 1e-8))
        error = abs(losses[worst] - want[worst]) / max(abs(want[worst]), 1e-8)
        c.record("training: losses", "f32", error)
        if not error <= LOSS_BOUND:
            c.fail("%s: loss of update %d is %.8g, not %.8g (%.2g)" % (
                title, worst + 1, losses[worst], want[worst], error))
        state = model.state_dict()
        if list(final) != list(state):
            c.fail("%s: the file holds %s, not %s" % (title, list(final), list(state)))
            return document
        for n, t in state.items() if weights else ():
            if n == "layers.conv1.bias" or n == "layers.norm1.running_mean":
                continue  # a batch norm follows; the mean it tracks holds that bias
            error = (final[n].double() - t.double()).norm().item() / max(t.double().norm().item(), 1e-12)
            c.record("training: weights", "f32", error)
            if not error <= WEIGHT_BOUND:
                c.fail("%s: %s differs by %.3g of its norm" % (title, n, error))
        return document


OPTIMIZERS = [
    ("SGD", {"lr": 0.05}), ("SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.02, "momentum": 0.8, "dampening": 0.2, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.001}), ("Adam", {"lr": 0.001, "amsgrad": True, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.0005, "weight_decay": 0.05, "betas": (0.8, 0.99)}), ("RMSprop", {"lr": 0.0005}),
    ("RMSprop", {"lr": 0.0001, "momentum": 0.5}), ("Adagrad", {"lr": 0.005}), ("RAdam", {"lr": 0.002}),
    ("NAdam", {"lr": 0.001}), ("Rprop", {"lr": 1e-6}), ("ASGD", {"lr": 0.05}),
]


def node_params(params):
    """Node parameters: betas are text there. weight_decay is passed always, 0 when not named."""
    out = dict(params)
    if "betas" in out:
        out["betas"] = ", ".join("%g" % b for b in out["betas"])
    return out


def torch_params(kind, params):
    """Optimizer passes its own default of weight_decay, 0: AdamW's 0.01 does not apply."""
    return params if kind == "Rprop" else dict({"weight_decay": 0.0}, **params)


def optimizer_of(kind, params):
    return lambda parameters: getattr(torch.optim, kind)(parameters, **torch_params(kind, params))


# ids: A4
def test_optimizers(c):
    with Place(c) as place:
        for name, trunk in (("CNN", CNN), ("MLP", MLP)):
            for kind, params in OPTIMIZERS:
                place.compare("%s %s %s" % (name, kind, params), trunk, dict(node_params(params), type=kind),
                              torch_optimizer=optimizer_of(kind, params), weights=kind != "Rprop")


def warmup(kind, warm, total):
    """The warm-up family: rate i/warm up to the peak, then constant, linear or half a cosine to 0."""
    def factor(i):
        if i < warm:
            return i / max(1, warm)
        if kind == "constant_with_warmup":
            return 1.0
        progress = min(1.0, (i - warm) / max(1, total - warm))
        return 1 - progress if kind == "warmup_linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return lambda o: torch.optim.lr_scheduler.LambdaLR(o, factor)


S = torch.optim.lr_scheduler
SCHEDULERS = [
    ({"type": "StepLR", "step_size": 30, "gamma": 0.5}, lambda o: S.StepLR(o, 30, 0.5), True),
    ({"type": "StepLR", "step_size": 2, "gamma": 0.1}, lambda o: S.StepLR(o, 2, 0.1), False),
    ({"type": "MultiStepLR", "step_size": 20, "gamma": 0.6}, lambda o: S.MultiStepLR(o, [20, 40, 60, 80], 0.6), True),
    ({"type": "ExponentialLR", "gamma": 0.97}, lambda o: S.ExponentialLR(o, 0.97), True),
    ({"type": "CosineAnnealingLR", "T_max": 60}, lambda o: S.CosineAnnealingLR(o, 60), True),
    ({"type": "CosineAnnealingLR", "T_max": 4}, lambda o: S.CosineAnnealingLR(o, 4), False),
    ({"type": "CosineAnnealingWarmRestarts", "T_max": 30}, lambda o: S.CosineAnnealingWarmRestarts(o, 30), True),
    ({"type": "OneCycleLR", "max_lr": 0.05, "total_steps": 101}, lambda o: S.OneCycleLR(o, 0.05, 101), True),
    ({"type": "ReduceLROnPlateau", "gamma": 0.3}, lambda o: S.ReduceLROnPlateau(o, factor=0.3), False),
    ({"type": "warmup_cosine", "warmup_steps": 20, "total_steps": 90}, warmup("warmup_cosine", 20, 90), True),
    ({"type": "warmup_linear", "warmup_steps": 10, "total_steps": 100}, warmup("warmup_linear", 10, 100), True),
    ({"type": "constant_with_warmup", "warmup_steps": 30}, warmup("constant_with_warmup", 30, 0), True),
]


# ids: A4 case-T93 case-T94
def test_schedulers(c):
    sgd = {"lr": 0.01, "momentum": 0.9}
    with Place(c) as place:
        for i, (params, make, per_update) in enumerate(SCHEDULERS):
            name, trunk = (("CNN", CNN), ("MLP", MLP))[i % 2]
            place.compare("%s %s" % (name, params), trunk, dict(sgd, type="SGD"), scheduler=params,
                          loop={"scheduler_step": "optimizer_step" if per_update else "epoch"},
                          torch_optimizer=optimizer_of("SGD", sgd), torch_scheduler=make, per_update=per_update,
                          plateau="Plateau" in params["type"])
        adam = {"lr": 0.001}  # OneCycleLR cycles beta1
        place.compare("MLP Adam OneCycleLR", MLP, dict(adam, type="Adam"),
                      scheduler={"type": "OneCycleLR", "max_lr": 0.004, "total_steps": 101},
                      loop={"scheduler_step": "optimizer_step"}, torch_optimizer=optimizer_of("Adam", adam),
                      torch_scheduler=lambda o: S.OneCycleLR(o, 0.004, 101), per_update=True)


def single_output(trunk, *more):
    """One number a sample in place of ten classes."""
    head = list(trunk[-1])
    head[2] = dict(head[2], out_features=1)
    return trunk[:-1] + [tuple(head), ("pick", "SelectIndex", {"dim": 1, "index": 0})] + \
        [(n, k, {}) for n, k in more]


WEIGHTS = [0.5, 1.0, 1.5, 1.0, 2.0, 0.25, 1.0, 1.0, 0.75, 1.25]


# ids: A5
def test_class_losses(c):
    sgd = {"lr": 0.02, "momentum": 0.9}
    weight = torch.tensor(WEIGHTS)
    text = ",".join("%g" % w for w in WEIGHTS)
    rows = [
        ({"type": "CrossEntropyLoss", "label_smoothing": 0.1}, [],
         lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1)),
        ({"type": "CrossEntropyLoss", "weight": text, "ignore_index": 3}, [],
         lambda y, t: F.cross_entropy(y, t, weight.to(y.dtype), ignore_index=3)),
        ({"type": "NLLLoss"}, [("soft", "Softmax")], F.nll_loss),
        ({"type": "NLLLoss", "weight": text}, [("soft", "Softmax")], lambda y, t: F.nll_loss(y, t, weight.to(y.dtype))),
        ({"type": "CrossEntropyLoss", "reduction": "sum"}, [],
         lambda y, t: F.cross_entropy(y, t, reduction="sum")),
    ]
    with Place(c) as place:
        for i, (loss, more, function) in enumerate(rows):
            for name, trunk in (("CNN", CNN), ("MLP", MLP)):
                rate = dict(sgd, lr=0.002) if loss.get("reduction") == "sum" else sgd
                place.compare("%s %s" % (name, loss), trunk + [(n, k, {}) for n, k in more], dict(rate, type="SGD"),
                              loss, torch_loss=function, torch_optimizer=optimizer_of("SGD", rate))


# ids: A5
def test_value_losses(c):
    """Labels 0 and 1 as numbers against one output; two outputs where a loss compares them."""
    sgd = {"lr": 0.01, "momentum": 0.9}
    positive = torch.tensor([2.0])
    rows = [
        ({"type": "MSELoss"}, [], F.mse_loss), ({"type": "L1Loss"}, [], F.l1_loss),
        ({"type": "SmoothL1Loss"}, [], F.smooth_l1_loss), ({"type": "HuberLoss"}, [], F.huber_loss),
        ({"type": "BCEWithLogitsLoss"}, [], F.binary_cross_entropy_with_logits),
        ({"type": "BCEWithLogitsLoss", "pos_weight": "2.0"}, [],
         lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=positive)),
        ({"type": "BCELoss"}, [("sig", "Sigmoid")], F.binary_cross_entropy),
        ({"type": "KLDivLoss"}, [("sig", "Sigmoid")], lambda y, t: F.kl_div(y, t, reduction="mean")),
    ]
    with Place(c, classes=2) as place:
        for loss, more, function in rows:
            for name, trunk in (("CNN", CNN), ("MLP", MLP)):
                place.compare("%s %s" % (name, loss), single_output(trunk, *more), dict(sgd, type="SGD"), loss,
                              torch_loss=lambda y, t: function(y, t.to(y.dtype)),
                              torch_optimizer=optimizer_of("SGD", sgd))
        for loss, function in (
                ({"type": "MarginRankingLoss"}, lambda y, t: F.margin_ranking_loss(y[0], y[1], t.to(y[0].dtype))),
                ({"type": "CosineEmbeddingLoss"}, lambda y, t: F.cosine_embedding_loss(y[0], y[1], t.to(y[0].dtype)))):
            wide = {"in_features": MLP[-1][2]["in_features"], "out_features": 4}
            if loss["type"] == "MarginRankingLoss":
                heads = [[("a", "Linear", dict(wide, out_features=1)), ("pa", "SelectIndex", {"dim": 1, "index": 0})],
                         [("b", "Linear", dict(wide, out_features=1)), ("pb", "SelectIndex", {"dim": 1, "index": 0})]]
            else:
                heads = [[("a", "Linear", wide)], [("b", "Linear", wide)]]
            slow = {"lr": 0.002}  # neither loss reaches 0 within the run
            place.compare("MLP %s" % loss, MLP[:-1], dict(slow, type="SGD"), loss, heads=heads, torch_loss=function,
                          torch_optimizer=optimizer_of("SGD", slow), seed=13)


# ids: A1 A3 A4 A5 A6
def test_accumulation_and_clipping(c):
    """Windows of 4 over 25 batches: the last one of an epoch is short, and divided by 4 as well."""
    sgd = {"lr": 0.05, "momentum": 0.9}
    with Place(c) as place:
        for name, trunk in (("CNN", CNN), ("MLP", MLP)):
            for accumulate, clip in ((4, 0.0), (1, 0.5), (3, 0.7)):
                document = place.compare(
                    "%s accumulate %d clip %g" % (name, accumulate, clip), trunk, dict(sgd, type="SGD"),
                    loop={"accumulate_steps": accumulate, "grad_clip_norm": clip},
                    torch_optimizer=optimizer_of("SGD", sgd), accumulate=accumulate, clip=clip)
                metrics = (document or {}).get("metrics", {})
                updates = EPOCHS * math.ceil(BATCHES / accumulate)
                if document and (metrics.get("total_steps"), metrics.get("total_batches")) != (
                        updates, EPOCHS * BATCHES):
                    c.fail("%s accumulate %d: metrics count %s updates and %s batches, not %d and %d" % (
                        name, accumulate, metrics.get("total_steps"), metrics.get("total_batches"), updates,
                        EPOCHS * BATCHES))
