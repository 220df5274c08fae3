"""Live bytes of a PyTorch training step on the CPU, from PyTorch's own profiler: every allocation and free of
the CPU allocator, summed from before the model exists."""
import torch
from torch.profiler import ProfilerActivity, profile, record_function


def step_trace(make, optimizer, batch, loss_of, bf16, steps=2):
    """[(bytes, live before the event)] of the last step. make() -> model; batch() -> (x, y); loss_of(output, y)
    -> loss; all made inside, so that everything alive is counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        model = make()
        x, y = batch()
        optim = optimizer(model.parameters())
        out = loss = None
        for i in range(steps):
            with record_function("step %d" % i):
                optim.zero_grad(set_to_none=True)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                    out = model(x)
                    loss = loss_of(out, y)
                loss.backward()
                optim.step()
    events = p.profiler.kineto_results.events()
    start = [e.start_us() for e in events if e.name() == "step %d" % (steps - 1)][0]
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_us())
    live, trace = 0, []
    for e in memory:
        if e.start_us() >= start:
            trace.append((e.nbytes(), live))
        live += e.nbytes()
    return trace


def step_peak(*args, **more):
    trace = step_trace(*args, **more)
    return max(before + max(bytes_, 0) for bytes_, before in trace)
