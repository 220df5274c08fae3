"""Schedules against torch.optim.lr_scheduler, stepped the same number of times."""
import json
import math
import os
import subprocess
import warnings

import torch
from torch.optim import lr_scheduler

from harness import Skip

OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "RAdam", "NAdam", "Rprop", "ASGD"]
WARMUP = ["warmup_cosine", "warmup_linear", "constant_with_warmup"]


def ask(context, **request):
    """The answer of schedtool; numbers come as text with all their digits."""
    path = os.path.join(os.path.dirname(context.tool.path), "schedtool")
    if not os.path.exists(path):
        raise Skip("schedtool is not built")
    found = subprocess.run([path, "schedule"], input=json.dumps(request) + "\n",
                           capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError("schedtool ended with %d: %s" % (found.returncode, found.stderr))
    answer = json.loads(found.stdout)
    for key in ("lrs", "momenta"):
        answer[key] = [float(x) for x in answer.get(key, [])]
    return answer


def factor(node):
    """The warm-up family as a function for LambdaLR."""
    warm, total = node["warmup_steps"], node.get("total_steps")

    def of(i):
        if i < warm:
            return i / warm
        if node["type"] == "constant_with_warmup":
            return 1.0
        if node["type"] == "warmup_linear":
            return max(0.0, (total - i) / max(1, total - warm))
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (i - warm) / max(1, total - warm))))
    return of


def scheduler_of(node, optimizer):
    kind = node["type"]
    if kind == "StepLR":
        return lr_scheduler.StepLR(optimizer, node["step_size"], node["gamma"])
    if kind == "MultiStepLR":
        return lr_scheduler.MultiStepLR(
            optimizer, [node["step_size"] * k for k in (1, 2, 3, 4)], node["gamma"])
    if kind == "ExponentialLR":
        return lr_scheduler.ExponentialLR(optimizer, node["gamma"])
    if kind == "CosineAnnealingLR":
        return lr_scheduler.CosineAnnealingLR(optimizer, node["T_max"])
    if kind == "CosineAnnealingWarmRestarts":
        return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, node["T_max"])
    if kind == "ReduceLROnPlateau":
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=node["gamma"])
    if kind == "OneCycleLR":
        return lr_scheduler.OneCycleLR(
            optimizer, node["max_lr"], total_steps=node["total_steps"])
    return lr_scheduler.LambdaLR(optimizer, factor(node))


def optimizer_of(node):
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.zeros(2)
    more = {"momentum": node["momentum"]} if node.get("momentum") else {}
    return getattr(torch.optim, node["type"])([weight], lr=node["lr"], **more)


def momentum_of(optimizer):
    group = optimizer.param_groups[0]
    return group["betas"][0] if "betas" in group else group.get("momentum")


def expect(node, optimizer_node, steps, metrics=None):
    """(rates, momenta, scheduler) of PyTorch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = optimizer_of(optimizer_node)
        scheduler = scheduler_of(node, optimizer)
        lrs, momenta = [optimizer.param_groups[0]["lr"]], [momentum_of(optimizer)]
        for i in range(steps):
            optimizer.step()
            if metrics is None:
                scheduler.step()
            else:
                scheduler.step(metrics[i])
            lrs.append(optimizer.param_groups[0]["lr"])
            momenta.append(momentum_of(optimizer))
    return lrs, momenta, scheduler


def draw(context, kind):
    """A random node of this type, and how many steps to take."""
    rng = context.rng
    total = int(rng.randint(1, 60))
    node = {"type": kind, "step_size": int(rng.randint(1, 9)),
            "gamma": float(context.pick(0.1, 0.5, 0.9, round(rng.uniform(0.05, 0.99), 3))),
            "T_max": int(rng.randint(1, 25)), "max_lr": float(context.pick(0.01, 0.1, 1.0)),
            "total_steps": total, "warmup_steps": int(rng.randint(0, total + 1))}
    return node, total if kind == "OneCycleLR" else int(rng.randint(1, 90))


def compare(context, title, got, want):
    if got != want:
        i = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        context.fail("%s: step %d: %r, not %r (%d and %d numbers)" % (
            title, i, got[i:i + 1], want[i:i + 1], len(got), len(want)))


def each(context, kind):
    lr = {"type": "SGD", "lr": float(context.pick(1.0, 0.1, 0.001, 0.3))}
    for _ in range(4 * context.rounds):
        node, steps = draw(context, kind)
        metrics = None
        if kind == "ReduceLROnPlateau":
            metrics = [float(x) for x in context.rng.uniform(0.9, 1.1, steps)]
        answer = ask(context, scheduler=node, optimizer=lr, steps=steps, metrics=metrics)
        lrs, _, scheduler = expect(node, lr, steps, metrics)
        context.count += 1
        compare(context, json.dumps(node), answer["lrs"], lrs)
        check_state(context, node, answer["state"], scheduler.state_dict())


OURS = {"max_lr", "warmup_type", "warmup_steps", "total_steps", "_last_lr"}


def check_state(context, node, got, want):
    """Every key of PyTorch's state (beside functions) with its value; of our own only those listed."""
    want = {k: v for k, v in want.items() if k != "anneal_func"}
    for key, value in want.items():
        if key == "milestones":
            value = {str(k): v for k, v in value.items()}
        found = got.get(key, "nothing")
        found = math.inf if found == "Infinity" else found
        if found != value or type(found) is not type(value):
            context.fail("%s: state %r is %r, not %r" % (node["type"], key, found, value))
    extra = set(got) - set(want) - OURS
    if extra:
        context.fail("%s: state has %s" % (node["type"], sorted(extra)))


def test_step(context):
    each(context, "StepLR")


def test_multistep(context):
    each(context, "MultiStepLR")


def test_exponential(context):
    each(context, "ExponentialLR")


def test_cosine(context):
    each(context, "CosineAnnealingLR")


def test_restarts(context):
    each(context, "CosineAnnealingWarmRestarts")


def test_plateau(context):
    each(context, "ReduceLROnPlateau")


def test_warmup(context):
    for kind in WARMUP:
        each(context, kind)


def test_onecycle(context):
    """Rate and momentum with every optimizer; those that PyTorch refuses are refused."""
    for kind in OPTIMIZERS:
        for _ in range(context.rounds):
            node, steps = draw(context, "OneCycleLR")
            own = {"type": kind, "lr": 0.05}
            if kind in ("SGD", "RMSprop") and context.rng.rand() < 0.5:
                own["momentum"] = 0.9
            answer = ask(context, scheduler=node, optimizer=own, steps=steps)
            context.count += 1
            try:
                lrs, momenta, scheduler = expect(node, own, steps)
            except ValueError:
                if "error" not in answer:
                    context.fail("OneCycleLR with %s is accepted" % kind)
                continue
            if "error" in answer:
                context.fail("OneCycleLR with %s: %s" % (kind, answer["error"]))
                continue
            compare(context, "%s %s" % (kind, json.dumps(node)), answer["lrs"], lrs)
            compare(context, "momentum of " + kind, answer["momenta"], momenta)
            check_state(context, node, answer["state"], scheduler.state_dict())
    node = {"type": "OneCycleLR", "max_lr": 1.0, "total_steps": 5}
    for steps in (5, 6):
        answer = ask(context, scheduler=node, optimizer={"type": "SGD", "lr": 1.0}, steps=steps)
        try:
            expect(node, {"type": "SGD", "lr": 1.0}, steps)
            refused = False
        except ValueError:
            refused = True
        if refused != ("error" in answer):
            context.fail("OneCycleLR of 5 steps after %d: %r" % (steps, answer.get("error")))


def test_refused(context):
    """What PyTorch refuses is refused."""
    for node in ({"type": "ReduceLROnPlateau", "gamma": 1.0},
                 {"type": "OneCycleLR", "total_steps": 0, "max_lr": 0.1},
                 {"type": "CosineAnnealingWarmRestarts", "T_max": 0}):
        context.count += 1
        own = {"type": "SGD", "lr": 1.0}
        try:
            scheduler_of(node, optimizer_of(own))
            context.fail("PyTorch accepts %r" % node)
        except ValueError:
            pass
        if "error" not in ask(context, scheduler=node, optimizer=own, steps=1):
            context.fail("%r is accepted" % node)


def test_resume(context):
    """Our state in PyTorch's scheduler and PyTorch's in ours: both go on as if nothing happened."""
    for kind in ("StepLR", "MultiStepLR", "ExponentialLR", "CosineAnnealingLR",
                 "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "OneCycleLR", *WARMUP):
        node, _ = draw(context, kind)
        node.update(total_steps=40, warmup_steps=6)
        own = {"type": "SGD", "lr": 0.1}
        metrics = [1.0 + 0.001 * (i % 7) for i in range(30)] if "Plateau" in kind else None
        lrs, _, _ = expect(node, own, 30, metrics)
        context.count += 1

        half = ask(context, scheduler=node, optimizer=own, steps=11, metrics=metrics)
        rest = metrics and metrics[11:]
        again = ask(context, scheduler=node, optimizer=own, steps=19, metrics=rest,
                    restore=half["state"])
        compare(context, kind + " from our state", again["lrs"], lrs[11:])

        _, _, scheduler = expect(node, own, 11, metrics and metrics[:11])
        state = {k: "Infinity" if v == math.inf else v
                 for k, v in scheduler.state_dict().items() if k != "anneal_func"}
        if kind == "MultiStepLR":
            state["milestones"] = dict(state["milestones"])
        theirs = ask(context, scheduler=node, optimizer=own, steps=19, metrics=rest, restore=state)
        compare(context, kind + " from PyTorch's state", theirs["lrs"], lrs[11:])

        if kind != "ReduceLROnPlateau":
            moved = ask(context, scheduler=node, optimizer=own, steps=19, forward=11)
            compare(context, kind + " moved forward", moved["lrs"], lrs[11:])
