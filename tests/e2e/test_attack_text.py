"""Hostile files of language models: tokenizers, token files, folders, adapters; estimates and storage problems of
absurd numbers. Each ends in time, with one document, and says what is wrong."""
import gzip
import json
import os
import random
import struct

import attack
import harness
import nets

BIG = (1 << 63) - 1
SMALL = {"vocab_size": 300, "d_model": 64, "n_layers": 1, "n_heads": 2, "d_ff": 64, "max_seq_len": 32}


def tokenizer_of(snug):
    with open(nets.tokenizer_file(snug)) as f:
        return json.load(f)


def split(pattern, behaviour="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behaviour, "invert": False}


def hostile_tokenizers(snug):
    """(what, text of the file)"""
    base = tokenizer_of(snug)

    def change(**parts):
        return json.dumps(dict(base, **parts))

    def model(**parts):
        return change(model=dict(base["model"], **parts))

    yield "empty", ""
    yield "deep", "[" * 100000
    yield "deep objects", '{"a":' * 100000
    yield "deep steps", change(normalizer=json.loads('{"type":"Sequence","normalizers":[' * 300 + "]}" * 300))
    yield "deep pre-tokenizers", change(pre_tokenizer=json.loads('{"type":"Sequence","pretokenizers":[' * 300 + "]}" * 300))
    for pattern in ("(a*)*b", "(a+)+$", "(.*)*x", "((a|aa)+)+b", "(?:a?){5000}a{5000}", "a{1000000000}", "(" * 10000,
                    "[" * 1000, "(a{1000}){1000}", "\\p{Nonsense}", "(?=(?=(?=a)))", "(?<=a*)b", "a**", "\\", "[z-a]", "(?:)*",
                    "(?:a|b|)*c", "x" * 100000, "(?i:[\\s\\S]{1,9999})+", "\\1(a)", "(?P<n>a)"):
        yield "pattern " + pattern[:30], change(pre_tokenizer=split(pattern))
        yield "replace " + pattern[:30], change(
            normalizer={"type": "Replace", "pattern": {"Regex": pattern}, "content": "y" * 100})
    yield "replace grows", change(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 60})
    yield "prepend grows", change(normalizer={"type": "Prepend", "prepend": "x" * 10 ** 6})
    for name, vocab in (("negative", {"a": -1}), ("huge", {"a": BIG}), ("float", {"a": 0.5}), ("null", {"a": None}),
                        ("twice", {"a": 0, "b": 0}), ("list", []), ("gap", {"a": 0, "b": 1 << 31}), ("none", {})):
        yield "vocab " + name, model(vocab=vocab, merges=[])
    yield "a million words", model(vocab=dict(base["model"]["vocab"], **{"w%d" % i: 1000 + i for i in range(10 ** 6)}))
    for name, merges in (("unknown", ["qq zz"]), ("one", ["a"]), ("three", ["a b c"]), ("numbers", [1, 2]), ("text", "a b"),
                         ("pairs", [["a"]]), ("empty", [""]), ("nul", ["\0 \0"])):
        yield "merges " + name, model(merges=merges)
    for name, tokens in (("id", [{"id": BIG, "content": "x"}]), ("empty", [{"id": 256, "content": ""}]), ("text", "x"),
                         ("many", [{"id": 300 + i, "content": "a" * (i % 50 + 1) + str(i), "special": True}
                                   for i in range(20000)])):
        yield "added " + name, change(added_tokens=tokens)
    yield "unknown model", model(type="Unigram")
    yield "no model", change(model=None)
    yield "post", change(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?", "type_id": 0}}],
                                         "pair": [], "special_tokens": {}})
    r = random.Random(7)
    whole = json.dumps(base)
    for _ in range(30):
        at = r.randrange(len(whole))
        yield "cut", whole[:at]
        yield "changed", whole[:at] + r.choice('{}[]",:0-9\\\0') + whole[at + 1:]


def test_hostile_tokenizers(snug):
    cases = attack.Cases(snug)
    text = snug.write("text.txt", "a" * 3000 + "\n" + "ab " * 800 + "\n\n" + "\u0301" * 900 + "\U0001f600" * 200 + "\n")
    for what, content in hostile_tokenizers(snug):
        file = snug.write("hostile.json", content)
        result = cases.call(what, "tokenizer", "encode", text, "--tokenizer", file, timeout=30)
        if result and result.rc and result.doc["error"]["code"] != "unsupported":
            if not any(w in json.dumps(result.doc["error"]) for w in ("hostile.json", "pattern", "normalizer")):
                cases.wrong.append("%s: the file is not named: %r" % (what, result.doc["error"]))
    cases.end()


def test_hostile_token_files(snug):
    cases = attack.Cases(snug)
    nets.tokenizer_file(snug)
    nets.tokens_file(snug)
    graph = nets.text_graph(SMALL, train__max_steps=1)
    corpus = next(n for n in graph["nodes"] if n["id"] == "corpus")["data"]["params"]
    path, good = snug.write("graph.json", graph), attack.get(os.path.join(snug.dir, "tokens.bin"))
    for what, data in (("empty", b""), ("a byte", b"\1"), ("odd", good[:301]), ("short", good[:20]), ("outside", b"\xff" * 2000),
                       ("one outside", good[:-2] + struct.pack("<H", 300)), ("cut header", struct.pack("<3i", 20240520, 1, BIG % 99))):
        attack.put(os.path.join(snug.dir, "tokens.bin"), data)
        result = cases.call(what, "run", path)
        if result and result.rc != 1 and what not in ("odd", "one outside"):  # the last is read by nobody
            cases.wrong.append("%s: exit %d" % (what, result.rc))
        if result and result.rc == 1 and not result.doc["error"]["node_id"]:
            cases.wrong.append("%s: no node: %r" % (what, result.doc["error"]))
    for magic in (20240520, 20240801, 20240522):
        for version in (1, 2, 7, -1):
            for count in (0, 1, 450, 10 ** 9, -1):
                head = struct.pack("<3i", magic, version, count) + bytes(1012)
                attack.put(os.path.join(snug.dir, "tokens.bin"), head + good)
                cases.call("header %d %d %d" % (magic, version, count), "run", path)
    os.remove(os.path.join(snug.dir, "tokens.bin"))
    os.mkdir(os.path.join(snug.dir, "tokens.bin"))
    cases.fails("a folder", "run", path, node="corpus")
    os.rmdir(os.path.join(snug.dir, "tokens.bin"))
    os.symlink("tokens.bin", os.path.join(snug.dir, "tokens.bin"))
    cases.fails("a link to itself", "run", path, node="corpus")
    # Texts: cut and hostile gzip, a single line of many bytes, NUL, no valid UTF-8
    whole = gzip.compress(b"words of a text\n" * 4000)
    for what, data, name in (("cut gzip", whole[:len(whole) // 2], "t.txt.gz"), ("no gzip", b"abc", "t.txt.gz"),
                             ("two members", whole + whole, "t.txt.gz"), ("rest", whole + b"garbage", "t.txt.gz"),
                             ("zeros", gzip.compress(bytes(50 << 20)), "t.txt.gz"), ("one line", b"ab " * 10 ** 6, "t.txt"),
                             ("nul", b"\0\0\n\0" * 900, "t.txt"), ("no utf-8", b"\xff\xfe\x80 x\n" * 900, "t.txt"),
                             ("lines", b"\n" * 10 ** 6, "t.txt"), ("nothing", b"", "t.txt"), ("carriage", b"a\r\n" * 900, "t.txt")):
        attack.put(os.path.join(snug.dir, name), data)
        corpus["local_file"] = name
        result = cases.call(what, "run", snug.write("graph.json", graph), timeout=60)
        if result and result.rc == 1 and not result.doc["error"]["node_id"]:
            cases.wrong.append("%s: no node: %r" % (what, result.doc["error"]))
    # What was kept of a text is damaged: it is made again.
    corpus["local_file"] = "t.txt"
    attack.put(os.path.join(snug.dir, "t.txt"), b"some words of a text\n" * 300)
    first = cases.call("kept", "run", snug.write("graph.json", graph))
    folder = os.path.join(snug.home, "cache", "tokens")
    for name in sorted(os.listdir(folder)):
        data = attack.get(os.path.join(folder, name))
        for bad in (b"", data[:7], data[:len(data) // 2], data + b"xx", bytes(len(data)), b"\xff" * len(data)):
            attack.put(os.path.join(folder, name), bad)
            result = cases.call("kept tokens damaged", "run", snug.write("graph.json", graph))
            if result and (result.rc or result.doc["metrics"]["final_train_loss"] != first.doc["metrics"]["final_train_loss"]):
                cases.wrong.append("%s of %d bytes, %d kept: %r" % (name, len(data), len(bad), result))
    cases.end()


def saved_folder(snug, name="base"):
    """A folder of snug:PretrainedLM, made by hand: a Llama of one layer."""
    r = random.Random(3)
    folder = os.path.join(snug.dir, name)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 16,
              "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False}
    shapes = {"model.embed_tokens.weight": (300, 16), "lm_head.weight": (300, 16), "model.norm.weight": (16,)}
    layer = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16), "self_attn.o_proj": (16, 16),
             "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24), "input_layernorm": (16,),
             "post_attention_layernorm": (16,)}
    shapes.update({"model.layers.0.%s.weight" % k: s for k, s in layer.items()})
    header, data = {}, b""
    for k, s in shapes.items():
        count = s[0] * (s[1] if len(s) > 1 else 1)
        raw = struct.pack("<%df" % count, *[r.gauss(0, 1) for _ in range(count)])
        header[k] = {"dtype": "F32", "shape": list(s), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    weights = struct.pack("<Q", len(text)) + text + data
    attack.put(os.path.join(folder, "config.json"), json.dumps(config).encode())
    attack.put(os.path.join(folder, "one.safetensors"), weights)
    index = {"metadata": {}, "weight_map": {k: "one.safetensors" for k in shapes}}
    attack.put(os.path.join(folder, "model.safetensors.index.json"), json.dumps(index).encode())
    return folder, config, index, header, data


def pretrained_graph(folder, adapter=None):
    graph = harness.training_graph()
    graph["nodes"] = [n for n in graph["nodes"] if n["id"] == "start"]
    graph["edges"] = []
    attack.add(graph, "model", "snug:PretrainedLM", {"path": folder})
    attack.add(graph, "t", "TensorInput", {"shape": "1,5", "dtype": "int64", "value_mode": "zeros"})
    attack.add(graph, "infer", "Inference", {}, ("model", "model", "infer", "model"), ("t", "tensor", "infer", "input"))
    attack.add(graph, "say", "Print", {}, ("infer", "output", "say", "value"))
    graph["edges"] += [{"id": "go" + i, "source": "start", "sourceHandle": "trigger", "target": i, "targetHandle": "",
                        "type": "trigger"} for i in ("model", "t")]
    return nets.through_adapter(graph, adapter) if adapter else graph


# ids: H4
def test_hostile_folders(snug):
    folder, config, index, header, data = saved_folder(snug)
    cases = attack.Cases(snug)
    graph = snug.write("graph.json", pretrained_graph(folder))
    assert snug.json("run", graph).rc == 0, snug.json("run", graph)
    place = os.path.join(folder, "model.safetensors.index.json")
    outside = attack.put(os.path.join(snug.dir, "outside.safetensors"), attack.get(os.path.join(folder, "one.safetensors")))
    name = "model.norm.weight"
    for target in ("../outside.safetensors", outside, "./../outside.safetensors", "x/../../outside.safetensors", "", ".", "/", "\0",
                   "one.safetensors/../../outside.safetensors", "x" * 5000, None, 5, [], {}):
        wrong = json.loads(json.dumps(index))
        wrong["weight_map"][name] = target
        attack.put(place, json.dumps(wrong).encode())
        cases.fails("weight_map to %r" % (target,), "run", graph, node="model")
    for text in ("[" * 100000, "{}", "[]", "null", json.dumps({"weight_map": {}}), '{"weight_map":' * 3000, "x"):
        attack.put(place, text.encode())
        cases.fails("index %.20s" % text, "run", graph, node="model")
    attack.put(place, json.dumps(index).encode())
    place = os.path.join(folder, "config.json")
    for key in config:
        for value in (-1, 0, BIG, 1 << 31, 10 ** 9, 1e308, None, "x", [], {}, True, 0.5):
            attack.put(place, json.dumps(dict(config, **{key: value})).encode())
            for command in ("plan", "run"):
                result = cases.call("config %s %r" % (key, value), command, graph, timeout=30)
                if result and result.rc == 1 and result.doc["error"]["node_id"] not in ("model", "infer"):
                    cases.wrong.append("config %s %r: node %r" % (key, value, result.doc["error"]))
    for text in ("", "[]", "[" * 100000, "null", "{" * 9):
        attack.put(place, text.encode())
        cases.fails("config %.9s" % text, "run", graph, node="model")
    attack.put(place, json.dumps(config).encode())
    place = os.path.join(folder, "one.safetensors")
    for what, change in (("outside", {"data_offsets": [0, BIG]}), ("negative", {"data_offsets": [-1, 63]}),
                         ("backwards", {"data_offsets": [64, 0]}), ("shape", {"shape": [BIG, BIG]}), ("rank", {"shape": [1] * 99}),
                         ("type", {"dtype": "F3"}), ("size", {"dtype": "F64"}), ("missing", {"shape": None})):
        wrong = json.loads(json.dumps(header))
        wrong[name].update(change)
        text = json.dumps(wrong).encode()
        attack.put(place, struct.pack("<Q", len(text)) + text + data)
        cases.fails("safetensors " + what, "run", graph, node="model")
    for size in (0, BIG, (1 << 64) - 1, 1 << 32):
        attack.put(place, struct.pack("<Q", size) + b"{}")
        cases.fails("header of %d" % size, "run", graph, node="model")
    os.remove(place)
    os.symlink("one.safetensors", place)
    cases.fails("a link to itself", "run", graph, node="model")
    cases.end()


# ids: H4
def test_hostile_adapters(snug):
    folder = saved_folder(snug)[0]
    cases = attack.Cases(snug)
    peft = os.path.join(snug.dir, "peft")
    graph = snug.write("graph.json", pretrained_graph(folder, {"adapter": peft}))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "lora_dropout": 0.0, "bias": "none",
              "fan_in_fan_out": False, "task_type": "CAUSAL_LM"}
    stem, raw = "base_model.model.model.layers.0.self_attn.q_proj.lora_%s.weight", bytes(128)
    header = {stem % "A": {"dtype": "F32", "shape": [2, 16], "data_offsets": [0, 128]},
              stem % "B": {"dtype": "F32", "shape": [16, 2], "data_offsets": [128, 256]}}

    def write(config, header, data=2 * raw):
        text = json.dumps(header).encode()
        attack.put(os.path.join(peft, "adapter_config.json"), config if isinstance(config, bytes) else json.dumps(config).encode())
        attack.put(os.path.join(peft, "adapter_model.safetensors"), struct.pack("<Q", len(text)) + text + data)

    write(config, header)
    first = cases.call("as it is", "run", graph)
    assert first and first.rc == 0, (first, cases.wrong)
    for key in config:
        for value in (-1, 0, BIG, 10 ** 9, 1e308, None, "x", [], {}, [None], ["x"] * 10000, True, 0.5, "(a*)*b", ".*", ""):
            write(dict(config, **{key: value}), header)
            result = cases.call("%s %.40r" % (key, value), "run", graph, timeout=30)
            if result and result.rc == 1 and result.doc["error"]["node_id"] != "adapter":
                cases.wrong.append("%s %.40r: %r" % (key, value, result.doc["error"]))
    for text in (b"", b"[]", b"null", b"[" * 100000, b"{"):
        write(text, header)
        cases.fails("config %.9r" % text, "run", graph, node="adapter")
    for what, change in (("shape", {"shape": [3, 16]}), ("swapped", {"shape": [16, 2]}), ("offsets", {"data_offsets": [0, BIG]})):
        write(config, dict(header, **{stem % "A": dict(header[stem % "A"], **change)}))
        cases.fails("weights " + what, "run", graph, node="adapter")
    write(config, {stem % "A": header[stem % "A"]}, raw)
    cases.fails("one of two", "run", graph, node="adapter")
    write(config, dict(header, more=header[stem % "A"]))
    cases.call("one more", "run", graph)
    cases.end()


def test_absurd_estimates(snug):
    """Numbers that no machine has: an error, or sums that are right, never below zero."""
    cases = attack.Cases(snug)
    base = ["estimate", "--layers", 2, "--hidden", 64, "--heads", 4, "--vocab", 100]
    sizes = [0, 1, 65536, 1 << 20, 1 << 28, 1 << 31, 1 << 40, BIG]
    names = ["layers", "hidden", "heads", "kv-heads", "head-dim", "ffn", "vocab", "positions", "experts", "experts-per-token",
             "batch", "seq", "rank", "cards", "tp", "context-mib"]
    rows = [["--" + n, s] for n in names for s in sizes]
    rows += [["--params", p] for p in ("9e17", "1e16", "nan", "-1", "1e400", "0", "99999T", "7q")]
    rows += [[a, s, b, s] for a, b in (("--batch", "--seq"), ("--hidden", "--ffn"), ("--experts", "--experts-per-token"))
             for s in sizes[2:]]
    for row in rows:
        for more in ([], ["--formula", "founding"], ["--method", "lora", "--targets", "all-linear", "--checkpointing", "blocks"]):
            if more and (row[0] in ("--layers",) or os.environ.get("SNUG_SOAK") != "1" and random.Random(str(row)).random() < 0.7):
                continue
            what = " ".join(map(str, row + more))
            result = cases.call(what, *base, *row, *more, timeout=60)
            if result and result.rc == 0:
                cases.wrong += ["%s: %s" % (what, bad) for bad in negative(result.doc)]
            if result and result.rc == 3:
                cases.wrong.append("%s: out of memory" % what)
    cases.end()


def negative(node, at=""):
    """Paths of numbers below zero in a document; what is free may be."""
    if isinstance(node, dict):
        return [x for k, v in node.items() if "free" not in k for x in negative(v, at + "." + k)]
    if isinstance(node, list):
        return [x for i, v in enumerate(node) for x in negative(v, "%s[%d]" % (at, i))]
    return [at] if isinstance(node, (int, float)) and node < 0 and not at.endswith("layer") else []


def test_hostile_configs_of_estimates(snug):
    cases = attack.Cases(snug)
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
              "intermediate_size": 128, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    for key in list(config) + ["head_dim", "type_vocab_size", "max_position_embeddings", "hidden_dropout_prob"]:
        for value in (-1, 0, BIG, -BIG, 10 ** 9, 1 << 40, 1e308, None, "x", "x" * 5000, [], {}, True, 0.5):
            path = snug.write("config.json", dict(config, **{key: value}))
            result = cases.call("%s %.20r" % (key, value), "estimate", "--hf", path, timeout=60)
            if result and result.rc == 0:
                cases.wrong += ["%s %.20r: %s" % (key, value, bad) for bad in negative(result.doc)]
    for text in ("", "[]", "null", "[" * 100000, "{", '"x"', "\0"):
        cases.fails("text %.9r" % text, "estimate", "--hf", snug.write("config.json", text))
    cases.fails("a folder", "estimate", "--hf", snug.dir)
    cases.end()


def test_hostile_problems(snug):
    cases = attack.Cases(snug)
    head = "id,lower,upper,size\n"
    many = head + "".join("%d,%d,%d,%d\n" % (i, i % 977, i % 977 + 1 + i * 7919 % 31, 1 + i * 104729 % 4096) for i in range(20000))
    for what, text in (("nothing", ""), ("head", head), ("largest", head + "a,0,1,%d\n" % BIG),
                       ("two of the largest", head + "a,0,1,%d\nb,0,1,%d\n" % (BIG, BIG)),
                       ("four of 2^61", head + "".join("%d,0,9,%d\n" % (i, 1 << 61) for i in range(4))),
                       ("far", head + "a,%d,%d,5\n" % (BIG - 1, BIG)), ("long", head + "a,0,%d,5\nb,3,%d,7\n" % (BIG, BIG)),
                       ("alignment", "id,lower,upper,size,alignment\n" + "".join("%d,0,9,1,%d\n" % (i, 1 << 30) for i in range(50))),
                       ("large and aligned", "id,lower,upper,size,alignment\na,0,1,%d,1073741824\nb,0,1,1,1073741824\n" % (BIG - 5)),
                       ("same id", head + "a,0,1,1\na,0,1,1\n"), ("zero", head + "a,0,1,0\n"), ("nul", head + "\0,0,1,1\n"),
                       ("quotes", head + '"a",0,1,1\n'), ("many", many), ("spaces", head + " a , 0 , 1 , 1 \n"),
                       ("commas", "," * 100000), ("columns", head + "a,0,1,1,1,1\n"), ("one line", "x" * 10 ** 6)):
        path = snug.write("p.csv", text)
        for more in ((), ("--capacity", "1GiB"), ("--capacity", "1")):
            result = cases.call("%s %s" % (what, more), "plan", "--problem", path, *more, timeout=100)
            if result and result.rc == 0:
                cases.wrong += ["%s: %s" % (what, bad) for bad in negative(result.doc)]
    cases.end()
