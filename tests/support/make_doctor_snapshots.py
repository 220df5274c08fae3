#!/usr/bin/python3
"""Snapshots of programs that fail in known ways, as torch.cuda.memory._dump_snapshot would write them: a small
training program of layers whose allocations go through the allocator of alloc_sim.py, with the stacks that
PyTorch records (C++ frames with "all", none on the threads of the backward pass with "python").

    python3 tests/support/make_doctor_snapshots.py FOLDER      writes the files that study_test.c reads
"""
import os
import pickle
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import alloc_sim

MIB = 1 << 20
PACKAGES = "/opt/venv/lib/python3.11/site-packages/"


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


CALL = [frame("_call_impl", PACKAGES + "torch/nn/modules/module.py", 1553),
        frame("_wrapped_call_impl", PACKAGES + "torch/nn/modules/module.py", 1544)]
TRAIN, MODEL = "/home/me/project/train.py", "/home/me/project/net/model.py"
ENGINE = [frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "Functions.cpp", 0),
          frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)", "??", 0),
          frame("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", "??", 0)]
STEP = [frame("_single_tensor_adamw", PACKAGES + "torch/optim/adamw.py", 380),
        frame("step", PACKAGES + "torch/optim/adamw.py", 220),
        frame("wrapper", PACKAGES + "torch/optim/optimizer.py", 487)]


class Program:
    """A model of `layers` layers with weights of `width` bytes, and activations of `act` bytes each."""

    def __init__(self, a, layers=6, width=64 * MIB, act=48 * MIB + 4096, cpp=True, logits=96 * MIB):
        self.a, self.layers, self.width, self.act, self.cpp, self.logits = a, layers, width, act, cpp, logits
        self.main = [frame("<module>", TRAIN, 90)]
        self.weights, self.grads, self.state, self.held = [], [], [], []

    def inner(self, op):
        if not self.cpp:
            return []
        return [frame("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char)", "??", 0),
                frame("at::_ops::%s::call(at::Tensor const&)" % op, "??", 0)]

    def at(self, op, *frames):
        self.a.frames = self.inner(op) + [f for f in frames] + self.main

    def new(self, size, op, *frames):
        self.at(op, *frames)
        return self.a.malloc(size)

    def drop(self, b, *frames):
        if b is not None:
            self.at("free", *frames)
            self.a.free(b)

    def build(self):
        for i in range(self.layers):
            self.weights.append(self.new(self.width + 512 * i, "to", frame("_apply", PACKAGES + "torch/nn/modules/module.py", 900),
                                         frame("to", PACKAGES + "torch/nn/modules/module.py", 1152), frame("main", TRAIN, 20)))

    def layer(self, i, loop):
        """Frames within layer i: the line of the layer, of the model's loop, of the program."""
        return [frame("forward", MODEL, 30 + i % 3), *CALL, frame("forward", MODEL, 52), *CALL, *loop]

    def forward(self, loop, keeps, batch=1.0):
        """Activations that the graph keeps (with `keeps`), and temporaries; returns what is kept."""
        kept, last = [], None
        for i in range(self.layers):
            n = int(self.act * batch)
            wide = self.new(2 * n, "linear", *self.layer(i, loop))
            out = self.new(n, "mul", *self.layer(i + 1, loop))
            if keeps:
                kept += [wide, out]
            else:
                self.drop(wide, *self.layer(i, loop))
                self.drop(last, *loop)
            last = out
        head = self.new(int(self.logits * batch), "linear", frame("forward", MODEL, 60), *CALL, *loop)
        if keeps:
            return kept + [head]
        self.drop(last, frame("forward", MODEL, 61), *CALL, *loop)
        return [head]

    def loss(self, loop):
        at = [frame("cross_entropy", PACKAGES + "torch/nn/functional.py", 3104), *loop]
        got = [self.new(self.logits, "log_softmax", *at), self.new(4, "nll_loss", *at)]
        return got

    def engine(self):
        self.a.frames = (self.inner("mm") + ENGINE) if self.cpp else []

    def backward(self, loop, kept, frees=True):
        self.at("ones_like", frame("backward", PACKAGES + "torch/_tensor.py", 525), *loop)
        self.drop_later = self.a.malloc(4)
        first = not self.grads
        flow = None
        for i, b in enumerate(reversed(kept)):
            self.engine()
            new = self.a.malloc(self.act)
            if flow:
                self.a.free(flow)
            flow = new
            if first and i % 2 == 0 and len(self.grads) < self.layers:
                self.grads.append(self.a.malloc(self.width + 512 * (self.layers - 1 - len(self.grads))))
            if frees:
                self.a.free(b)
        self.engine()
        self.a.free(flow)
        self.a.free(self.drop_later)

    def step(self, loop):
        at = [*STEP, *loop]
        if not self.state:
            for w in self.weights:
                self.state += [self.new(w.requested, "zeros_like", *at), self.new(w.requested, "zeros_like", *at)]
        for w in self.weights:
            t = self.new(w.requested, "sqrt", *at)
            self.drop(t, *at)

    def zero(self, loop):
        for g in self.grads:
            self.drop(g, frame("zero_grad", PACKAGES + "torch/optim/optimizer.py", 960), *loop)
        self.grads = []

    def iteration(self, batch=1.0, leak=None):
        """One of training; `leak` keeps something."""
        def loop(line):
            return [frame("train", TRAIN, line), frame("main", TRAIN, 80)]
        x = self.new(int(12 * MIB * batch), "to", *loop(40))
        kept = self.forward(loop(41), True, batch)
        kept += self.loss(loop(42))
        if leak == "graph":                      # retain_graph=True, and the losses in a list
            self.held += kept
        self.backward(loop(44), kept, leak != "graph")
        self.step(loop(45))
        self.zero(loop(46))
        if leak == "results":                    # outputs in a list
            self.held.append(self.new(32 * MIB, "clone", *loop(47)))
        self.drop(x, *loop(40))

    def evaluate(self, batches, grad, keep=False):
        """Evaluation: with `grad`, each batch keeps its graph until the next one is there."""
        def loop(line):
            return [frame("evaluate", TRAIN, line), frame("main", TRAIN, 84)]
        old = []
        for _ in range(batches):
            x = self.new(12 * MIB, "to", *loop(60))
            kept = self.forward(loop(61), grad)
            if keep:
                self.held += [kept.pop()]
            for b in old:
                self.drop(b, *loop(61))
            old = kept
            self.drop(x, *loop(60))
        for b in old:
            self.drop(b, *loop(64))


def until_oom(work):
    try:
        work()
    except alloc_sim.OutOfMemory:
        return True
    return False


def growth(leak, capacity, **how):
    a = alloc_sim.Allocator(capacity=capacity, seed=21)
    p = Program(a, **how)

    def work():
        p.build()
        for _ in range(500):
            p.iteration(leak=leak)
    assert until_oom(work)
    return [a]


def capacity(size, **how):
    a = alloc_sim.Allocator(capacity=size, seed=22)
    p = Program(a, **how)

    def work():
        p.build()
        for i in range(4):
            p.iteration(batch=1.0 if i < 3 else 3.0)
    assert until_oom(work)
    return [a]


def evaluation(grad, keep, size):
    a = alloc_sim.Allocator(capacity=size, seed=23)
    p = Program(a)

    def work():
        p.build()
        for _ in range(3):
            p.iteration()
        for _ in range(50):
            p.evaluate(8, grad, keep)
    assert until_oom(work) or not keep
    return [a]


def single(size):
    a = alloc_sim.Allocator(capacity=size, seed=24)
    p = Program(a)

    def work():
        p.build()
        p.iteration()
        p.new(40 << 30, "bmm", frame("attention", MODEL, 77), *CALL, frame("train", TRAIN, 41))
    assert until_oom(work)
    return [a]


def pieces(size, expandable=False):
    """Large blocks come and go, smaller ones are cut from what they leave, and every second one stays."""
    a = alloc_sim.Allocator(capacity=size, seed=25, expandable=expandable,
                            conf="expandable_segments:True" if expandable else "")
    p = Program(a)

    def at(name, line):
        return [frame(name, TRAIN, line), frame("main", TRAIN, 81)]

    def work():
        p.build()
        for k in range(4):
            p.drop(p.new(800 * MIB, "cat", *at("collate", 33)), *at("collate", 34))
            got = [p.new((12 + 4 * k) * MIB, "clone", *at("remember", 37)) for _ in range(800 // (12 + 4 * k))]
            for b in got[::2]:
                p.drop(b, *at("forget", 39))
        p.new(300 * MIB, "cat", *at("collate", 33))
    assert until_oom(work)
    return [a]


def several():
    """Two devices: the second runs out, the first is calm."""
    return [calm(False)[0], capacity(4000 * MIB)[0]]


def calm(cpp, iterations=5):
    a = alloc_sim.Allocator(seed=26)
    p = Program(a, cpp=cpp)
    p.build()
    for _ in range(iterations):
        p.iteration()
    return [a]


def limited(size):
    """A share of the card: the allocator may have `size`, the card has much more."""
    devices = capacity(size)
    for e in devices[0].events:
        if e["action"] == "oom":
            e["device_free"] = 8 << 30
    return devices


def stacks(a, size, *frames):
    a.frames = list(frames)
    return a.malloc(size)


def first_forward():
    """Layers of one forward pass: memory rises with each, and that is no growth."""
    a = alloc_sim.Allocator(capacity=2000 * MIB, seed=27)

    def work():
        while True:
            stacks(a, 64 * MIB, frame("forward", MODEL, 20), CALL[0], frame("forward", MODEL, 50), CALL[0], frame("train", TRAIN, 42))
    assert until_oom(work)
    return [a]


def one_line():
    """One line of the program makes the same size in each step, and nothing is ever freed."""
    a = alloc_sim.Allocator(capacity=2000 * MIB, seed=28)

    def work():
        while True:
            stacks(a, 64 * MIB, frame("train_step", TRAIN, 42), frame("main", TRAIN, 90))
    assert until_oom(work)
    return [a]


def unnamed():
    """Forward passes with gradients in a function of no telling name; each graph lives until the next is there."""
    a = alloc_sim.Allocator(capacity=2600 * MIB, seed=29)

    def work():
        old, k = [], 0
        while True:
            new = [stacks(a, (30 + i + 2 * k) * MIB, frame("forward", MODEL, 20), CALL[0], frame("forward", MODEL, 50 + i), CALL[0], frame("main", TRAIN, 42))
                   for i in range(20)]
            for b in old:
                a.frames = [frame("main", TRAIN, 42)]
                a.free(b)
            old, k = new, k + 1
    assert until_oom(work)
    return [a]


def no_stacks():
    a = alloc_sim.Allocator(capacity=2000 * MIB, seed=30)

    def work():
        while True:
            got = [stacks(a, n * MIB) for n in (300, 50, 40, 41)]
            stacks(a, 30 * MIB)
            for b in got:
                a.free(b)
    assert until_oom(work)
    return [a]


def cases():
    yield "first_forward", first_forward()
    yield "one_line", one_line()
    yield "unnamed", unnamed()
    yield "no_stacks", no_stacks()
    yield "growth", growth("results", 4000 * MIB)
    yield "graph", growth("graph", 12000 * MIB)
    yield "graph_python", growth("graph", 12000 * MIB, cpp=False)
    yield "capacity", capacity(4000 * MIB)
    yield "evaluation", evaluation(True, False, 2800 * MIB)
    yield "evaluation_results", evaluation(False, True, 4000 * MIB)
    yield "single", single(8000 * MIB)
    yield "pieces", pieces(3700 * MIB)
    yield "pieces_expandable", pieces(3700 * MIB, True)
    yield "several", several()
    yield "calm", calm(True)
    yield "calm_python", calm(False)
    yield "limit", limited(4000 * MIB)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name, devices in cases():
        with open(os.path.join(folder, name + ".pickle"), "wb") as f:
            pickle.dump(alloc_sim.snapshot(devices), f, 4)
        print(name, [len(a.events) for a in devices], [sum(e["action"] == "oom" for e in a.events) for a in devices])


if __name__ == "__main__":
    main()
