"""kill -9 at random moments of a run that writes checkpoints: each resumes to the same weights."""
import json
import os
import random
import shutil
import subprocess
import time

import attack
import harness
import nets

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


def kills(snug, graph, waits, rounds=ROUNDS):
    """Each round starts anew, is killed, resumes to its end; the weights are those of a run left alone."""
    final = os.path.join(snug.home, "models", "final.safetensors")
    begin = time.time()
    assert snug.json("run", graph, "--threads", 1).rc == 0
    whole, wanted, resumed = time.time() - begin, attack.weights(final), 0
    for i in range(rounds):
        shutil.rmtree(snug.home)
        killed_after(snug, graph, lambda child: waits(child, whole))
        again = snug.json("run", graph, "--resume", "auto", "--threads", 1)
        assert again.rc == 0, again
        resumed += "resumed_from" in again.doc
        assert attack.weights(final) == wanted, "round %d, from %s" % (i, again.doc.get("resumed_from"))
        left = [f for _, _, files in os.walk(snug.home) for f in files if ".part" in f]
        assert not left, left
    assert resumed > rounds // 4 or rounds < 4, "%d of %d rounds got as far as a checkpoint" % (resumed, rounds)


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


# What a checkpoint has to hold under levers: few-bit states, masters, adapters over a frozen base.
LEVERS = [
    ({"optimizer_state": "int8", "update_in_backward": True, "loss_chunk_tokens": 24}, None, "AdamW"),
    ({"parameter_dtype": "bfloat16", "accumulate_steps": 3, "checkpointing": "blocks"}, None, "AdamW"),
    ({"parameter_dtype": "bfloat16", "master_weights": "stochastic", "optimizer_state": "int8"}, None, "Adam"),
    ({"precision": "fp16", "checkpointing": "selective"}, {"rank": 4, "dropout": 0.1}, "AdamW"),
    ({"optimizer_state": "int8"}, {"kind": "qlora", "rank": 4}, "AdamW"),
    ({}, None, "Adafactor"),
]


def test_kill_with_levers(snug):
    """A language model, dropout on, under each set of levers."""
    nets.tokenizer_file(snug)
    nets.tokens_file(snug, 17 * 4 * 40)
    model = {"vocab_size": 256, "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 256, "max_seq_len": 32, "dropout": 0.1}
    for i, (levers, adapter, optimizer) in enumerate(LEVERS):
        r = random.Random(SEED + 10 + i)
        graph = nets.text_graph(model, 16, 4, train__max_steps=0, train__epochs=4, train__checkpoint_every_steps=10,
                                train__checkpoint_keep=2, optimizer__type=optimizer,
                                **{"train__" + k: v for k, v in levers.items()})
        if adapter:
            nets.through_adapter(graph, adapter)
            next(n for n in graph["nodes"] if n["id"] == "save")["data"]["params"]["merge"] = True
        kills(snug, snug.write("graph.json", graph), lambda child, whole: child.wait(timeout=r.random() * whole),
              ROUNDS if ROUNDS > 5 else 2)
        shutil.rmtree(snug.home)


def test_kill_while_saving_folders(snug):
    """Folders of huggingface and peft are whole or not there: a run after the kill writes them, and they load."""
    nets.tokenizer_file(snug)
    nets.tokens_file(snug)
    model = {"vocab_size": 256, "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 256, "max_seq_len": 32}
    graph = nets.through_adapter(nets.text_graph(model, train__max_steps=1), {"rank": 4})
    next(n for n in graph["nodes"] if n["id"] == "save")["data"]["params"].update(path="peft", format="peft")
    path = snug.write("graph.json", graph)
    folder = os.path.join(snug.home, "models", "peft")
    begin = time.time()
    assert snug.json("run", path).rc == 0
    whole, wanted = time.time() - begin, files_of(folder)
    again = json.loads(json.dumps(graph))
    next(n for n in again["nodes"] if n["id"] == "adapter")["data"]["params"]["adapter"] = "peft"
    again["nodes"] = [n for n in again["nodes"] if n["id"] != "save"]
    again["edges"] = [e for e in again["edges"] if e["target"] != "save"]
    again = snug.write("again.json", again)
    r = random.Random(SEED + 30)
    for i in range(ROUNDS * 2):
        shutil.rmtree(folder)
        child = snug.start("run", path, stdout=subprocess.DEVNULL)
        end = time.time() + whole * 2
        while child.poll() is None and time.time() < end and not os.path.isdir(folder):
            pass
        time.sleep(r.random() * 0.004)
        child.kill()
        child.communicate()
        if os.path.isdir(folder) and set(files_of(folder)) >= set(wanted):
            assert files_of(folder) == wanted, i
            assert snug.json("run", again).rc == 0
        elif os.path.isdir(folder):
            failed = snug.json("run", again)  # half a folder is refused by name
            assert failed.rc == 1 and failed.doc["error"]["node_id"] == "adapter", failed
        assert snug.json("run", path).rc == 0
        assert files_of(folder) == wanted and not [f for f in os.listdir(folder) if ".part" in f], os.listdir(folder)


def files_of(folder):
    return {f: attack.get(os.path.join(folder, f)) for f in sorted(os.listdir(folder)) if ".part" not in f}
