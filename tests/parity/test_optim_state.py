"""Optimizer states against torch.optim: read from PyTorch, written again, PyTorch goes on with them."""
import copy
import json
import os
import shutil
import subprocess
import tempfile
import warnings

import torch

from harness import Skip, same_bits
from test_schedule import scheduler_of

SHAPES = {"stem.weight": [3, 2, 3, 3], "stem.bias": [3], "scale": [], "head.weight": [4, 3]}
# Node parameters (reference names) of every optimizer and of its options.
CASES = [
    {"type": "SGD"}, {"type": "SGD", "momentum": 0.9},
    {"type": "SGD", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"type": "SGD", "momentum": 0.5, "dampening": 0.25},
    {"type": "Adam"}, {"type": "Adam", "amsgrad": True, "betas": "0.8, 0.95", "eps": 1e-6},
    {"type": "AdamW", "weight_decay": 0.02}, {"type": "AdamW", "amsgrad": True},
    {"type": "RMSprop"}, {"type": "RMSprop", "momentum": 0.9, "eps": 1e-5},
    {"type": "Adagrad", "weight_decay": 0.01}, {"type": "RAdam"}, {"type": "NAdam"},
    {"type": "Rprop"}, {"type": "ASGD", "weight_decay": 0.01},
]


class Program:
    def __init__(self, context):
        self.path = os.path.join(os.path.dirname(context.tool.path), "schedtool")
        if not os.path.exists(self.path):
            raise Skip("schedtool is not built")
        self.folder = tempfile.mkdtemp(prefix="snug-optim-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def run(self, state, node, names, saved_names=None, scheduler=None, forward=0):
        """What the tool makes of a PyTorch state: (answer, tree), or the text of its error."""
        there, back = os.path.join(self.folder, "in.pt"), os.path.join(self.folder, "out.pt")
        torch.save({"optimizer": state}, there)
        request = {"optimizer": node, "params": [{"name": n, "shape": SHAPES[n]} for n in names]}
        if saved_names is not None:
            request["saved_names"] = saved_names
        if scheduler:
            request.update(scheduler=scheduler, forward=forward)
        found = subprocess.run([self.path, "optim", there, back, json.dumps(request)],
                               capture_output=True, text=True)
        if found.returncode != 0:
            return found.stderr.strip(), None
        return json.loads(found.stdout), torch.load(back)


def gradients(names, step):
    make = torch.Generator().manual_seed(100 + step)
    return {n: torch.randn(SHAPES[n], generator=make) for n in names}


def start(node, names):
    make = torch.Generator().manual_seed(7)
    weights = {n: torch.nn.Parameter(torch.randn(SHAPES[n], generator=make)) for n in names}
    options = {k: v for k, v in node.items() if k != "type"}
    if "betas" in options:
        options["betas"] = tuple(float(b) for b in options["betas"].split(","))
    options.setdefault("lr", 0.01)
    if node["type"] == "AdamW":
        options.setdefault("weight_decay", 0.0)  # the node's default, not PyTorch's
    return weights, getattr(torch.optim, node["type"])(weights.values(), **options)


def walk(weights, optimizer, steps, scheduler=None):
    for step in steps:
        for name, g in gradients(list(weights), step).items():
            weights[name].grad = g
        optimizer.step()
        if scheduler:
            scheduler.step()


def same_tree(a, b):
    """None, or what differs between two trees of plain values and tensors."""
    if isinstance(a, torch.Tensor):
        return None if isinstance(b, torch.Tensor) and same_bits(a, b) else "%r, not %r" % (b, a)
    if isinstance(a, dict):
        if not isinstance(b, dict) or set(a) != set(b):
            return "keys %r, not %r" % (sorted(b, key=str), sorted(a, key=str))
        return next(("%s: %s" % (k, d) for k in a for d in [same_tree(a[k], b[k])] if d), None)
    if isinstance(a, (list, tuple)):
        if type(a) is not type(b) or len(a) != len(b):
            return "%r, not %r" % (b, a)
        return next((d for x, y in zip(a, b) for d in [same_tree(x, y)] if d), None)
    if a == b and (isinstance(a, bool) == isinstance(b, bool)):
        return None
    return "%r, not %r" % (b, a)


def test_round_trip(context):
    """Three steps, through our program, three more: the tree and the final weights are the same."""
    names = list(SHAPES)
    with Program(context) as program:
        for node in CASES:
            node = dict(node, lr=0.01)
            context.count += 1
            weights, optimizer = start(node, names)
            walk(weights, optimizer, range(3))
            answer, tree = program.run(optimizer.state_dict(), node, names)
            if tree is None:
                context.fail("%s: %s" % (json.dumps(node), answer))
                continue
            steps = {"SGD": 1}.get(node["type"], 3) if node != dict(CASES[0], lr=0.01) else 0
            if answer["steps"] != steps or answer["lr"] != 0.01:
                context.fail("%s: %r" % (json.dumps(node), answer))
            if node == dict(CASES[0], lr=0.01):
                tree["optimizer"]["state"] = optimizer.state_dict()["state"]
            different = same_tree(optimizer.state_dict(), tree["optimizer"])
            if different:
                context.fail("%s: %s" % (json.dumps(node), different))
            again = {n: torch.nn.Parameter(w.detach().clone()) for n, w in weights.items()}
            other = type(optimizer)(again.values(), lr=1.0)
            other.load_state_dict(tree["optimizer"])
            walk(weights, optimizer, range(3, 6))
            walk(again, other, range(3, 6))
            for n in names:
                if not same_bits(weights[n].detach(), again[n].detach()):
                    context.fail("%s: %s goes another way" % (json.dumps(node), n))


def test_before_the_first_step(context):
    """PyTorch has no states then (Adagrad has): accepted both ways."""
    names = list(SHAPES)
    with Program(context) as program:
        for node in CASES:
            node = dict(node, lr=0.01)
            context.count += 1
            _, optimizer = start(node, names)
            answer, tree = program.run(optimizer.state_dict(), node, names)
            if tree is None or answer["steps"] != 0:
                context.fail("%s: %s" % (json.dumps(node), answer))
                continue
            different = same_tree(optimizer.state_dict(), tree["optimizer"])
            if different:
                context.fail("%s: %s" % (json.dumps(node), different))
            optimizer.load_state_dict(tree["optimizer"])


def test_other_versions(context):
    """Key sets of older and newer versions: numbers for tensors, tensors for numbers, more keys."""
    names = list(SHAPES)
    with Program(context) as program:
        for node in CASES[1:]:
            node = dict(node, lr=0.01)
            weights, optimizer = start(node, names)
            walk(weights, optimizer, range(3))
            state = optimizer.state_dict()
            old, new = copy.deepcopy(state), copy.deepcopy(state)
            for entry in old["state"].values():
                for key in ("step", "mu_product", "eta", "mu"):
                    if isinstance(entry.get(key), torch.Tensor):
                        entry[key] = entry[key].item()
            for key in ("foreach", "maximize", "capturable", "differentiable", "fused"):
                old["param_groups"][0].pop(key, None)
            for entry in new["state"].values():
                if isinstance(entry.get("step"), int):
                    entry["step"] = torch.tensor(float(entry["step"]))
            new["param_groups"][0].update(lr=torch.tensor(0.01, dtype=torch.float64),
                                          decoupled_weight_decay=False, unheard_of=None)
            for variant in (old, new):
                context.count += 1
                answer, tree = program.run(variant, node, names)
                if tree is None:
                    context.fail("%s: %s" % (json.dumps(node), answer))
                elif same_tree(state, tree["optimizer"]):
                    context.fail("%s: %s" % (json.dumps(node), same_tree(state, tree["optimizer"])))


def test_order(context):
    """case-T43: with names the state follows its parameter; without, another shape is refused."""
    names, turned = list(SHAPES), list(SHAPES)[::-1]
    node = {"type": "SGD", "momentum": 0.9, "lr": 0.1}
    with Program(context) as program:
        weights, optimizer = start(node, names)
        walk(weights, optimizer, range(2))
        state = optimizer.state_dict()
        answer, tree = program.run(state, node, turned, saved_names=names)
        context.count += 3
        if tree is None:
            context.fail("by name: %s" % answer)
        else:
            for i, n in enumerate(turned):
                if not same_bits(tree["optimizer"]["state"][i]["momentum_buffer"],
                                 state["state"][names.index(n)]["momentum_buffer"]):
                    context.fail("%s has the state of another parameter" % n)
        answer, tree = program.run(state, node, turned)
        if tree is not None or "momentum_buffer" not in answer or "head.weight" not in answer:
            context.fail("another order is accepted, or not named: %s" % answer)
        answer, tree = program.run(state, node, names[:3], saved_names=[n + "x" for n in names])
        if tree is not None or "stem.weight" not in answer:
            context.fail("unknown names are accepted: %s" % answer)


def test_wrong(context):
    """Another optimizer's state, missing entries, another number of parameters: named."""
    names = list(SHAPES)
    with Program(context) as program:
        weights, optimizer = start({"type": "SGD", "momentum": 0.9}, names)
        walk(weights, optimizer, range(2))
        good = optimizer.state_dict()
        adam = {"type": "Adam", "lr": 0.01}
        for what, state, node, words in [
                ("SGD's as Adam's", good, adam, ["stem.weight", "exp_avg"]),
                ("no dict", [1], adam, ["param_groups"]),
                ("no state", {"param_groups": good["param_groups"]}, adam, ["state"]),
                ("no groups", {"state": good["state"]}, adam, ["param_groups"]),
                ("fewer", dict(good, state={k: good["state"][k] for k in (0, 1)}),
                 {"type": "SGD", "momentum": 0.9}, ["2", "4"]),
                ("text for a tensor", dict(good, state=dict(good["state"], **{})),
                 {"type": "SGD", "momentum": 0.9}, None)]:
            context.count += 1
            if words is None:
                state = copy.deepcopy(state)
                state["state"][0]["momentum_buffer"] = "text"
                words = ["momentum_buffer", "stem.weight"]
            answer, tree = program.run(state, node, names)
            if tree is not None or any(w not in answer for w in words):
                context.fail("%s: %s" % (what, answer))


def test_with_scheduler(context):
    """PyTorch's optimizer and scheduler take our dicts and go on as PyTorch alone."""
    names = list(SHAPES)
    schedulers = [
        {"type": "StepLR", "step_size": 2, "gamma": 0.5},
        {"type": "MultiStepLR", "step_size": 2, "gamma": 0.5},
        {"type": "CosineAnnealingLR", "T_max": 7}, {"type": "ExponentialLR", "gamma": 0.9},
        {"type": "CosineAnnealingWarmRestarts", "T_max": 3},
        {"type": "OneCycleLR", "max_lr": 0.1, "total_steps": 12},
        {"type": "warmup_cosine", "warmup_steps": 4, "total_steps": 10},
        {"type": "constant_with_warmup", "warmup_steps": 5}]
    with Program(context) as program, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scheduler in schedulers:
            for kind in ("SGD", "Adam", "NAdam", "RMSprop"):
                node = {"type": kind, "lr": 0.05}
                context.count += 1
                weights, optimizer = start(node, names)
                theirs = scheduler_of(scheduler, optimizer)
                walk(weights, optimizer, range(5), theirs)
                answer, tree = program.run(optimizer.state_dict(), node, names,
                                           scheduler=scheduler, forward=5)
                title = "%s with %s" % (scheduler["type"], kind)
                if tree is None:
                    context.fail("%s: %s" % (title, answer))
                    continue
                again = {n: torch.nn.Parameter(w.detach().clone()) for n, w in weights.items()}
                other = type(optimizer)(again.values(), lr=0.05)
                schedule = scheduler_of(scheduler, other)
                other.load_state_dict(tree["optimizer"])
                schedule.load_state_dict(tree["scheduler"])
                walk(weights, optimizer, range(5, 10), theirs)
                walk(again, other, range(5, 10), schedule)
                if not all(same_bits(weights[n].detach(), again[n].detach()) for n in names):
                    context.fail(title + ": goes another way")
                groups = same_tree(optimizer.state_dict()["param_groups"],
                                   other.state_dict()["param_groups"])
                if groups:
                    context.fail("%s: %s" % (title, groups))
