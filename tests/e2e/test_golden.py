"""With every lever at its default, the step programs of the examples are their golden dumps.

SNUG_GOLDEN=write makes them anew, after a change that means to change them.
"""
import os

# Programs depend on the graph alone; own-pictures needs pictures and is left out.
EXAMPLES = ("fashion-cnn", "mlp", "resnet18-cifar")


def dump_of(snug, name, *more):
    """`snug plan --dump-after fuse` as text: in the document under --json."""
    return snug.json("plan", snug.example(name), "--dump-after", "fuse", *more).doc["dump"]


# ids: N1
def test_examples_equal_their_golden_dumps(snug):
    for name in EXAMPLES:
        path = os.path.join(snug.root, "tests", "corpus", "golden", "example-%s.txt" % name)
        dump = dump_of(snug, name)
        if os.environ.get("SNUG_GOLDEN") == "write":
            with open(path, "w") as out:
                out.write(dump)
        with open(path) as golden:
            assert dump == golden.read(), "the programs of %s changed" % name


def test_levers_named_at_their_defaults_change_nothing(snug):
    named = ["checkpointing=none", "loss_chunk_tokens=0", "update_in_backward=false", "optimizer_state=float32",
             "parameter_dtype=float32", "master_weights=float32", "offload_activations=false",
             "accumulate_normalize=batches", "strategy=single", "precision=fp32", "accumulate_steps=1"]
    sets = [word for lever in named for word in ("--set", "TrainingLoop." + lever)]
    assert dump_of(snug, "fashion-cnn", *sets) == dump_of(snug, "fashion-cnn")


def test_budget_advice_gives_peaks(snug):
    # ids: O4
    result = snug.json("plan", snug.example("fashion-cnn"), "--memory-gib", "0.03")
    assert result.rc == 3, result
    detail = result.doc["error"]["detail"]
    assert "  - reduce batch_size on the DataLoader node (train-loader.batch_size=64): peak 2" in detail, detail
    assert "precision to bf16" in detail and "the numbers change" in detail, detail
    low = snug.json("plan", snug.example("fashion-cnn"), "--memory-gib", "0.02", "--set", "TrainingLoop.precision=bf16")
    assert "cheapest first" in low.doc["error"]["detail"] and "precision to bf16" not in low.doc["error"]["detail"], low


def test_what_accumulation_and_precision_save(snug):
    # ids: A9 P12
    plan = snug.json("plan", snug.example("fashion-cnn"), "--set", "TrainingLoop.accumulate_steps=4").doc
    assert plan["savings"] == {"accumulate_steps": 0}, plan["savings"]
    smaller = snug.json("plan", snug.example("fashion-cnn"), "--set", "TrainingLoop.accumulate_steps=4",
                        "--set", "DataLoader.batch_size=32", "--set", "EvaluateModel.batch_size=32").doc
    assert smaller["by_category"]["activations"] < plan["by_category"]["activations"] / 3
    assert smaller["peak_bytes"] < plan["peak_bytes"] * 2 / 3
    wide = snug.json("plan", snug.example("mlp"), "--set", "TrainingLoop.precision=bf16").doc
    assert "stay float32" in wide["precision_note"], wide
    assert "precision_note" not in snug.json("plan", snug.example("resnet18-cifar"),
                                             "--set", "TrainingLoop.precision=bf16").doc
