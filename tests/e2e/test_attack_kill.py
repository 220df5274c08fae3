"""kill -9 at random moments of a run that writes checkpoints: each resumes to the same weights."""
import os
import random
import shutil
import subprocess
import time

import attack
import harness

ROUNDS = 50 if os.environ.get("SNUG_SOAK") == "1" else 5
EPOCHS = 8  # 100 updates each: a run lasts long enough to be hit in all its parts
SEED = int(os.environ.get("SNUG_TEST_SEED", "1"))


def killed_after(snug, graph, wait):
    """Runs, resuming where it can, and kills; whether the run had ended by itself."""
    child = snug.start("run", graph, "--resume", "auto", "--threads", 1, stdout=subprocess.DEVNULL)
    try:
        wait(child)
    except subprocess.TimeoutExpired:
        pass
    ended = child.poll() is not None
    child.kill()
    child.communicate()
    return ended


def kills(snug, graph, waits):
    """Each round starts anew, is killed, resumes to its end; the weights are those of a run left alone."""
    final = os.path.join(snug.home, "models", "final.safetensors")
    begin = time.time()
    assert snug.json("run", graph, "--threads", 1).rc == 0
    whole, wanted, resumed = time.time() - begin, attack.weights(final), 0
    for i in range(ROUNDS):
        shutil.rmtree(snug.home)
        killed_after(snug, graph, lambda child: waits(child, whole))
        again = snug.json("run", graph, "--resume", "auto", "--threads", 1)
        assert again.rc == 0, again
        resumed += "resumed_from" in again.doc
        assert attack.weights(final) == wanted, "round %d, from %s" % (i, again.doc.get("resumed_from"))
        left = [f for _, _, files in os.walk(snug.home) for f in files if ".part" in f]
        assert not left, left
    assert resumed > ROUNDS // 4, "%d of %d rounds got as far as a checkpoint" % (resumed, ROUNDS)


def small_graph(snug, **params):
    attack.fashion(snug, 2000)
    return snug.write("graph.json", attack.saving_graph(
        harness.CNN, loader__batch_size=20, train__max_steps=0, train__epochs=EPOCHS, train__checkpoint_every_steps=20,
        train__checkpoint_keep=3, **params))


def test_kill_at_any_moment(snug):
    r = random.Random(SEED)
    kills(snug, small_graph(snug), lambda child, whole: child.wait(timeout=r.random() * whole))


def test_kill_with_everything_on(snug):
    """Accumulation, a scheduler, a scaler and validation have state too."""
    r = random.Random(SEED + 1)
    attack.fashion(snug, 200, split="test")
    attack.fashion(snug, 2000)
    graph = attack.saving_graph(
        harness.CNN, loader__batch_size=20, loader__num_workers=2, validate=True, train__max_steps=0, train__epochs=EPOCHS,
        train__checkpoint_every_steps=20, train__checkpoint_keep=3, train__accumulate_steps=3, train__precision="fp16",
        train__early_stopping_patience=5, train__scheduler_step="optimizer_step", optimizer__type="AdamW")
    attack.add(graph, "schedule", "LRScheduler", {"type": "CosineAnnealingLR", "T_max": 90},
               ("optimizer", "optimizer", "schedule", "optimizer"), ("schedule", "scheduler", "train", "lr_scheduler"))
    kills(snug, snug.write("graph.json", graph), lambda child, whole: child.wait(timeout=r.random() * whole))


def test_kill_while_writing(snug):
    """Killed as soon as a temporary file of a checkpoint is seen."""
    r = random.Random(SEED + 2)
    folder = os.path.join(snug.home, "models", "periodic")

    def writing(child, whole):
        end, wanted, seen = time.time() + whole, r.randrange(1, 12), set()
        while child.poll() is None and time.time() < end:
            try:
                now = {f for f in os.listdir(folder) if ".part" in f}
            except OSError:
                continue
            seen |= now
            if now and len(seen) >= wanted:
                return

    kills(snug, small_graph(snug), writing)


def test_killed_again_and_again(snug):
    """One run, killed until it is done: it always gets on, and ends with the same weights."""
    graph = small_graph(snug)
    final = os.path.join(snug.home, "models", "final.safetensors")
    begin = time.time()
    assert snug.json("run", graph, "--threads", 1).rc == 0
    wanted, whole = attack.weights(final), time.time() - begin
    shutil.rmtree(snug.home)
    for i in range(100):
        if killed_after(snug, graph, lambda child: child.wait(timeout=whole / 3 * (1 + i / 20))):
            break
    assert i > 0, "it was never killed"
    assert attack.weights(final) == wanted, "after %d kills" % i
