"""Nodes that compute tensors from tensors: shapes, numbers where there are no weights, what must hold of those
with weights, errors."""
import math

import harness


def canvas(nodes, wires):
    """A graph of `nodes` {id: (type, params)}; those that nothing feeds get a trigger. Each of `wires` is
    (node, port, node, port)."""
    graph = {"name": "canvas", "edges": [], "settings": {"seed": 3}, "nodes": [
        {"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]}
    for i, (kind, params) in nodes.items():
        graph["nodes"].append({"id": i, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params}})
        if i not in {b for _, _, b, _ in wires}:
            graph["edges"].append({"id": "t-" + i, "source": "start", "target": i, "sourceHandle": "trigger",
                                   "targetHandle": "", "type": "trigger"})
    for k, (a, p, b, q) in enumerate(wires):
        graph["edges"].append({"id": "e%d" % k, "source": a, "sourceHandle": p, "target": b, "targetHandle": q})
    return graph


def numbers(values, shape, dtype="float32"):
    return ("TensorInput", {"shape": shape, "dtype": dtype, "value_mode": "explicit", "values": values})


def random(shape, seed=1):
    return ("TensorInput", {"shape": shape, "seed": seed})


def shown(snug, nodes, wires, shows, *args):
    """Runs the graph with a Print behind each (node, port); what they say: [(dtype, shape, first numbers)]."""
    nodes, wires = dict(nodes), list(wires)
    for k, (node, port) in enumerate(shows):
        nodes["show%d" % k] = ("Print", {})
        wires.append((node, port, "show%d" % k, "value"))
    result = snug.json("run", snug.write("graph.json", canvas(nodes, wires)), *args)
    assert result.rc == 0, result
    peak = result.doc["peak_bytes_measured"]  # 0 where there are views only: no kernel ever gets an address
    assert peak in (0, result.doc["peak_bytes_planned"]), result.doc
    said = []
    for k in range(len(shows)):
        head, values = result.doc["results"]["show%d" % k]["message"].rsplit(" [", 1)
        dtype, shape = head[:head.index("[")], head[head.index("["):]
        values = [float(v) for v in values.rstrip("]").split(", ") if v and v != "..."]
        said.append((dtype, [int(n) for n in shape.strip("[] ").split(",") if n], values))
    return said


def near(a, b, bound=1e-4):
    return len(a) == len(b) and all(abs(x - y) <= bound * (1 + abs(y)) for x, y in zip(a, b))


SIX = [[1, 2, 3], [4, 5, 6]]


def test_tensor_operations(snug):
    two = {"a": numbers(SIX, "2,3"), "b": numbers([[1, 0, -1], [2, 2, 2]], "2,3"),
           "c": numbers([[1, 1], [0, 1], [2, 0]], "3,2"), "thin": numbers([[[5], [7]]], "1,2,1")}
    rows = [
        ("Add", {"alpha": 2.0}, "ab", [2, 3], [3, 2, 1, 8, 9, 10]),
        ("Multiply", {}, "ab", [2, 3], [1, 0, -3, 8, 10, 12]),
        ("ScalarMultiply", {"scalar": -0.5}, "a", [2, 3], [-0.5, -1, -1.5, -2, -2.5, -3]),
        ("MatMul", {}, "ac", [2, 2], [7, 3, 16, 9]),
        ("Mean", {"dim": "-1"}, "a", [2], [2, 5]),
        ("Mean", {"dim": "0,1", "keepdim": True}, "a", [1, 1], [3.5]),
        ("Argmax", {"dim": 1}, "b", [2], [0, 0]),
        ("Softmax", {"dim": 0}, "a", [2, 3], [1 / (1 + math.exp(3))] * 3 + [1 / (1 + math.exp(-3))] * 3),
        ("Permute", {"dims": "1,0"}, "a", [3, 2], [1, 4, 2, 5, 3, 6]),
        ("Reshape", {"shape": "3,-1"}, "a", [3, 2], [1, 2, 3, 4, 5, 6]),
        ("Flatten", {"start_dim": 0}, "a", [6], [1, 2, 3, 4, 5, 6]),
        ("Concat", {"dim": 1}, "ab", [2, 6], [1, 2, 3, 1, 0, -1, 4, 5, 6, 2, 2, 2]),
        ("Stack", {"dim": 0}, "ab", [2, 2, 3], [1, 2, 3, 4, 5, 6, 1, 0, -1, 2, 2, 2]),
        ("Unsqueeze", {"dim": 1}, "a", [2, 1, 3], [1, 2, 3, 4, 5, 6]),
        ("Squeeze", {}, "t", [2], [5, 7]),
        ("Squeeze", {"dim": 0}, "t", [2, 1], [5, 7]),
        ("Activation", {"function": "relu"}, "b", [2, 3], [1, 0, 0, 2, 2, 2]),
        ("Activation", {"function": "leaky_relu"}, "b", [2, 3], [1, 0, -0.01, 2, 2, 2]),
    ]
    nodes, wires, shows = dict(two), [], []
    for k, (kind, params, reads, _, _) in enumerate(rows):
        nodes["n%d" % k] = (kind, params)
        for name, port in zip(reads, ("tensor_a", "tensor_b") if len(reads) > 1 else ("tensor",)):
            wires.append(("thin" if name == "t" else name, "tensor", "n%d" % k, port))
        shows.append(("n%d" % k, "tensor"))
    for row, (_, shape, values) in zip(rows, shown(snug, nodes, wires, shows)):
        assert shape == row[3] and near(values, row[4]), (row, shape, values)


def test_split_has_as_many_ports_as_chunks(snug):
    said = shown(snug, {"a": numbers([1, 2, 3, 4, 5], "5", "int64"), "s": ("Split", {"chunks": 3})},
                 [("a", "tensor", "s", "tensor")], [("s", "chunk_0"), ("s", "chunk_1"), ("s", "chunk_2")])
    assert said == [("int64", [2], [1, 2]), ("int64", [2], [3, 4]), ("int64", [1], [5])], said


def test_layers_have_pytorch_shapes(snug):
    image, line, rows = "image", "line", "rows"
    nodes = {image: random("2,4,9,8"), line: random("2,4,9"), rows: random("3,4"),
             "ids": numbers([[0, 2], [1, 1]], "2,2", "int64")}
    layers = [
        ("Conv2d", {"in_channels": 4, "out_channels": 6}, image, [2, 6, 9, 8]),
        ("ConvTranspose2d", {"in_channels": 4, "out_channels": 3}, image, [2, 3, 18, 16]),
        ("Conv1d", {"in_channels": 4, "out_channels": 5}, line, [2, 5, 9]),
        ("MaxPool2d", {}, image, [2, 4, 4, 4]), ("AvgPool2d", {"padding": 1}, image, [2, 4, 5, 5]),
        ("AdaptiveAvgPool2d", {"output_height": 3, "output_width": 2}, image, [2, 4, 3, 2]),
        ("BatchNorm2d", {"num_features": 4}, image, [2, 4, 9, 8]), ("BatchNorm1d", {"num_features": 4}, rows, [3, 4]),
        ("GroupNorm", {"num_groups": 2, "num_channels": 4}, image, [2, 4, 9, 8]),
        ("InstanceNorm2d", {"num_features": 4}, image, [2, 4, 9, 8]),
        ("LayerNorm", {"normalized_shape": "9,8"}, image, [2, 4, 9, 8]), ("Dropout", {}, rows, [3, 4]),
        ("Linear", {"in_features": 4, "out_features": 7}, rows, [3, 7]), ("Flatten", {}, image, [2, 288]),
        ("Embedding", {"num_embeddings": 3, "embedding_dim": 5, "padding_idx": 1}, "ids", [2, 2, 5])]
    wires = []
    for kind, params, reads, _ in layers:
        nodes["n" + kind] = (kind, params)
        wires.append((reads, "tensor", "n" + kind, "tensor"))
    said = shown(snug, nodes, wires, [("n" + row[0], "tensor") for row in layers])
    found = {}
    for (kind, _, _, want), (_, shape, values) in zip(layers, said):
        assert shape == want, (kind, shape, want)
        found[kind] = values
    assert abs(sum(found["BatchNorm1d"][0::4])) < 1e-4, found["BatchNorm1d"]  # statistics are the batch's
    assert 0.0 in found["Dropout"] and any(found["Dropout"]), found["Dropout"]
    assert found["Embedding"][10:] == [0.0] * 6, found["Embedding"]  # the padding row, of 16 numbers shown


def test_recurrent_nodes(snug):
    nodes = {"x": random("2,5,3"), "row": random("1,3"), "h": random("1,4", 9),
             "lstm": ("LSTM", {"input_size": 3, "hidden_size": 2, "num_layers": 2, "bidirectional": True}),
             "gru": ("GRU", {"input_size": 3, "hidden_size": 2}),
             "cell": ("RNNCell", {"input_size": 3, "hidden_size": 4}),
             "same": ("RNNCell", {"input_size": 3, "hidden_size": 4, "nonlinearity": "relu"}),
             "last": ("Split", {"chunks": 5, "dim": 1})}
    wires = [("x", "tensor", "lstm", "tensor"), ("x", "tensor", "gru", "tensor"), ("gru", "output", "last", "tensor"),
             ("row", "tensor", "cell", "tensor"), ("h", "tensor", "cell", "hidden"), ("row", "tensor", "same", "tensor")]
    shows = [("lstm", "output"), ("lstm", "hidden"), ("gru", "hidden"), ("last", "chunk_4"), ("cell", "hidden"),
             ("same", "hidden")]
    said = shown(snug, nodes, wires, shows)
    assert [s for _, s, _ in said] == [[2, 5, 4], [4, 2, 2], [1, 2, 2], [2, 1, 2], [1, 4], [1, 4]], said
    assert said[2][2] == said[3][2], said  # the last state is the last result
    assert all(v >= 0 for v in said[5][2]) and any(v < 0 for v in said[4][2]), said
    assert shown(snug, nodes, wires, shows) == said  # a seed gives the same weights
    other = shown(snug, nodes, wires, shows, "--seed", "4")
    assert other[0] != said[0] and other[4] == said[4], other  # RNNCell has a seed of its own


def test_attention_nodes(snug):
    """Sequence first; the weights are averaged over the heads."""
    nodes = {"q": random("4,2,8"), "k": random("6,2,8", 5), "long": random("700,1,8"),
             "a": ("MultiHeadAttention", {"embed_dim": 8, "num_heads": 2}),
             "enc": ("TransformerEncoder", {"d_model": 8, "nhead": 2, "num_layers": 2, "dim_feedforward": 16}),
             "dec": ("TransformerDecoder", {"d_model": 8, "nhead": 2, "num_layers": 1, "dim_feedforward": 16}),
             "sum": ("Mean", {"dim": "-1"})}
    wires = [("q", "tensor", "a", "query"), ("k", "tensor", "a", "key"), ("k", "tensor", "a", "value"),
             ("a", "weights", "sum", "tensor"), ("q", "tensor", "enc", "tensor"),
             ("q", "tensor", "dec", "tensor"), ("enc", "tensor", "dec", "memory")]
    said = shown(snug, nodes, wires, [("a", "output"), ("a", "weights"), ("sum", "tensor"), ("enc", "tensor"),
                                      ("dec", "tensor")])
    assert [s for _, s, _ in said] == [[4, 2, 8], [2, 4, 6], [2, 4], [4, 2, 8], [4, 2, 8]], said
    assert near(said[2][2], [1 / 6] * 8), said[2]
    assert abs(sum(said[3][2][:8])) < 1e-3, said[3]  # ends with a norm
    # It never stores the matrix of scores unless somebody asks for the weights.
    nodes = {"x": random("700,1,8"), "a": ("TransformerEncoder", {"d_model": 8, "nhead": 2, "num_layers": 1,
                                                                    "dim_feedforward": 8})}
    plan = snug.json("plan", snug.write("long.json", canvas(nodes, [("x", "tensor", "a", "tensor")])))
    assert plan.rc == 0 and plan.doc["peak_bytes"] < 700 * 700, plan
    nodes["a"] = ("MultiHeadAttention", {"embed_dim": 8, "num_heads": 2})
    wires = [("x", "tensor", "a", p) for p in ("query", "key", "value")]
    plan = snug.json("plan", snug.write("plain.json", canvas(nodes, wires)))
    assert plan.rc == 0 and plan.doc["peak_bytes"] < 700 * 700, plan
    nodes["show"] = ("Print", {})
    plan = snug.json("plan", snug.write("seen.json", canvas(nodes, wires + [("a", "weights", "show", "value")])))
    assert plan.rc == 0 and plan.doc["peak_bytes"] > 700 * 700 * 4, plan


def test_positions_masks_and_experts(snug):
    nodes = {"x": ("TensorInput", {"shape": "1,3,4", "value_mode": "zeros"}), "r": random("2,3,4"),
             "pe": ("PositionalEncoding", {}), "learned": ("PositionalEncoding", {"mode": "learnable"}),
             "mask": ("AttentionMask", {}),
             "moe": ("MoELayer", {"num_experts": 3, "top_k": 2, "hidden_dim": 4, "expert_hidden_dim": 6}),
             "one": ("Mean", {"dim": "-1"})}
    wires = [("x", "tensor", n, "tensor") for n in ("pe", "learned", "mask")]
    wires += [("r", "tensor", "moe", "x"), ("moe", "routing_weights", "one", "tensor")]
    shows = [("pe", "tensor"), ("pe", "pe"), ("learned", "pe"), ("mask", "mask"), ("moe", "output"),
             ("moe", "routing_weights"), ("moe", "expert_indices"), ("one", "tensor")]
    said = shown(snug, nodes, wires, shows)
    want = [f(s / 10000 ** (i / 4)) for s in range(3) for i in (0, 2) for f in (math.sin, math.cos)]
    assert said[0][1] == [1, 3, 4] and near(said[0][2], want), said[0]
    assert said[1][1] == [3, 4] and near(said[1][2], want), said[1]
    assert said[2][1] == [3, 4] and 0 < max(map(abs, said[2][2])) < 0.2, said[2]
    assert said[3] == ("bool", [3, 3], [0, 1, 1, 0, 0, 1, 0, 0, 0]), said[3]
    assert [s for _, s, _ in said[4:]] == [[2, 3, 4], [2, 3, 2], [2, 3, 2], [2, 3]], said
    assert said[6][0] == "int64" and set(said[6][2]) <= {0, 1, 2}, said[6]
    assert near(said[7][2], [0.5] * 6), said[7]


def test_errors_name_node_and_reason(snug):
    bad = [
        ({"x": random("2,5"), "n": ("Linear", {"in_features": 4})}, "tensor", "expected 4 features"),
        ({"x": random("2,5"), "n": ("Linear", {"in_features": 0})}, "tensor", "in_features"),
        ({"x": random("2,5"), "n": ("Permute", {"dims": "0,0"})}, "tensor", "each of the 2 dimensions once"),
        ({"x": random("2,5"), "n": ("Reshape", {"shape": "3,x"})}, "tensor", "not a list of whole numbers"),
        ({"x": random("2,5"), "n": ("Reshape", {"shape": "3,-1"})}, "tensor", "[2, 5]"),
        ({"x": random("2,5"), "n": ("Mean", {"dim": "2"})}, "tensor", "outside of [-2, 1]"),
        ({"x": random("2,5"), "n": ("Unsqueeze", {"dim": 1 << 40})}, "tensor", "out of range"),
        ({"x": random("2,5"), "n": ("LSTM", {"input_size": 4})}, "tensor", "expected 4 features"),
        ({"x": random("2,5"), "n": ("LayerNorm", {"normalized_shape": "a"})}, "tensor", "normalized_shape"),
        ({"x": random("2,6"), "n": ("PositionalEncoding", {"max_len": 1})}, "tensor", "longer than max_len"),
        ({"x": random("2,5"), "n": ("MoELayer", {"top_k": 9})}, "x", "top_k must be at most num_experts"),
        ({"x": random("2,5"), "n": ("Embedding", {})}, "tensor", "outside 0..9999"),
        ({"x": random("2,5"), "n": ("AttentionMask", {"mode": "padding"})}, "tensor", "needs the input 'tokens'"),
    ]
    for nodes, port, text in bad:
        result = snug.json("run", snug.write("bad.json", canvas(nodes, [("x", "tensor", "n", port)])))
        assert result.rc == 1, (nodes, result)
        error = result.doc["error"]
        assert text in error["message"] and error["node_id"] == "n", (nodes, error)
        assert error["node_type"] == nodes["n"][0] and "layer \"" not in error["message"], error
        assert not error["message"].startswith("n: "), error
