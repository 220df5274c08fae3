"""`snug estimate`: the closed form beside measured public runs, its documents and its errors."""
import json
import statistics

import estimate_table


# ids: E5
def test_measured_public_runs(snug):
    """The median error over all public rows is under 8%."""
    rows = estimate_table.compare(snug.program)
    assert len(rows) >= 50
    median = statistics.median(abs(r[5]) for r in rows)
    assert median < 0.08, median


# ids: E5, E9
def test_a_config_is_answered_by_line_and_card(snug):
    config = snug.write("config.json", json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "tie_word_embeddings": False}))
    d = snug.json("estimate", "--hf", config, "--batch", 2, "--seq", 4096, "--precision", "bf16",
                  "--checkpointing", "blocks", "--card", "A100-80GB").doc
    assert d["status"] == "succeeded" and d["parameters"] == 8030261248
    assert sum(d["peak"]["by_line"].values()) == d["peak"]["bytes"] == d["allocated"]["bytes"]
    for size in (d["allocated"], d["per_card"], d["total"]):
        assert abs(size["gib"] * 2 ** 30 - size["bytes"]) < 2 ** 20 and abs(size["gb"] * 1e9 - size["bytes"]) < 1e6
    fit = d["fits"][0]
    assert fit["fits"] == (d["per_card"]["bytes"] <= fit["usable"]["bytes"])
    assert fit["sharded"]["safer"] >= fit["sharded"]["minimum"] >= 1
    more = snug.json("estimate", "--hf", config, "--batch", fit["batch_most"] + 1, "--seq", 4096, "--precision",
                     "bf16", "--checkpointing", "blocks", "--card", "A100-80GB").doc
    assert more["per_card"]["bytes"] > fit["usable"]["bytes"]
    text = snug("estimate", "--hf", config).out
    assert "GiB" in text and " GB" in text and "<- peak" in text and "ddp each card needs the whole bill" in text


# ids: E8, E9
def test_founding_formula(snug):
    line = "estimate --params 7e9 --layers 32 --hidden 4096 --heads 32 --seq 2048 --formula founding".split()
    d = snug.json(*line).doc
    assert d["states"]["bytes"] == 112000000000 and d["states"]["gib"] == 104.308
    assert d["layer"]["bytes"] == 1124073472 and round(d["total"]["gb"]) == 148
    assert d["cards"]["minimum"] == 2 and d["cards"]["tight"]
    d = snug.json(*line, "--batch", 4).doc
    assert round(d["total"]["gb"]) == 256 and d["cards"]["minimum"] == 4
    assert {16, 18, 12} <= {c["bytes_per_parameter"] for c in d["configurations"]}


def test_wrong_use_is_explained(snug):
    broken = snug.write("broken.json", '{"model_type": "llama", "hidden_size": 10}')
    for line, word in (("--layers 2", "hidden"), ("--hf nowhere.json", "nowhere.json"),
                       ("--hf %s" % broken, "layers"), ("--layers 2 --hidden 8 --heads 3 --kv-heads 2", "divide"),
                       ("--layers 2 --hidden 8 --heads 2 --precision fp8", "bf16-mixed"),
                       ("--layers 2 --hidden 8 --heads 2 --card A100", "A100-80GB"),
                       ("--layers 2 --hidden 8 --heads 2 --params many", "7B"),
                       ("--family cnn --layers 2 --hidden 8 --heads 2", "cnn"),
                       ("--layers 9999999999 --hidden 8 --heads 2", "large"),
                       ("--layers 2 --hidden 8 --heads 2 --seq 999999999999", "large")):
        r = snug.json("estimate", *line.split())
        assert r.rc in (1, 2) and word in json.dumps(r.doc["error"]), (line, r)
