"""The PyTorch-style estimate of a graph beside the live bytes of PyTorch's own profiler: the same networks, written
here by hand in PyTorch, one training step on the CPU, three optimizers, with and without bf16 autocast."""
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

import hf_make
import torch_live
from harness import Skip
from test_train import edge, layers_document, make_data, node

OPTIMIZERS = [("SGD", {"type": "SGD", "lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
              ("Adam", {"type": "Adam", "lr": 0.001}, lambda p: torch.optim.Adam(p, 0.001)),
              ("AdamW", {"type": "AdamW", "lr": 0.001, "weight_decay": 0.01},
               lambda p: torch.optim.AdamW(p, 0.001, weight_decay=0.01))]


# ---- networks ----

class Residual(nn.Module):
    """The two-convolution block of ResNet-18."""

    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) \
            if stride != 1 or i != o else None

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (self.short(x) if self.short else x))


def resnet18():
    blocks, width = [], 64
    for o, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        blocks.append(Residual(width, o, stride))
        width = o
    return nn.Sequential(nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.lstm(x.view(-1, 28, 28))[0][:, -1])


class Gpt2Block(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, ff), nn.Linear(ff, d)

    def forward(self, x, mask):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(d, 2))
        a = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(d // self.heads))
        a = F.softmax(a.masked_fill(mask, float("-inf")), -1)
        x = x + self.out((a @ v).transpose(1, 2).contiguous().view(b, s, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    def __init__(self, vocab, d, layers, heads, ff, seq):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Gpt2Block(d, heads, ff) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1))

    def forward(self, t):
        x = self.tokens(t) + self.places(torch.arange(t.shape[1]))
        for block in self.blocks:
            x = block(x, self.mask[:t.shape[1], :t.shape[1]])
        return self.head(self.norm(x)).flatten(0, 1)


class BertBlock(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.up, self.down, self.norm2 = nn.LayerNorm(d), nn.Linear(d, ff), nn.Linear(ff, d), nn.LayerNorm(d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.softmax((q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads), -1)
        x = self.norm1(x + self.out((a @ v).transpose(1, 2).contiguous().view(b, s, d)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """The encoder with its masked-language head."""

    def __init__(self, vocab, d, layers, heads, ff, seq):
        super().__init__()
        self.tokens, self.places, self.types = nn.Embedding(vocab, d), nn.Embedding(seq, d), nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d)
        self.blocks = nn.ModuleList(BertBlock(d, heads, ff) for _ in range(layers))
        self.pre, self.pre_norm, self.head = nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, vocab)
        self.head.weight = self.tokens.weight

    def forward(self, t):
        x = self.tokens(t) + self.places(torch.arange(t.shape[1])) + self.types(torch.zeros_like(t))
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pre_norm(F.gelu(self.pre(x)).float())).flatten(0, 1)


# ---- graphs ----

def sequential(trunk):
    return lambda place: [node("model", "SequentialModel", layers=layers_document(trunk[:-1], [[trunk[-1]]]))]


MLP = [("flat", "Flatten", {}), ("fc1", "Linear", {"in_features": 784, "out_features": 256}), ("r1", "ReLU", {}),
       ("fc2", "Linear", {"in_features": 256, "out_features": 128}), ("r2", "ReLU", {}),
       ("fc3", "Linear", {"in_features": 128, "out_features": 10})]
CNN = [("c1", "Conv2d", {"in_channels": 1, "out_channels": 32, "kernel_size": 3, "padding": 1}), ("r1", "ReLU", {}),
       ("p1", "MaxPool2d", {"kernel_size": 2}),
       ("c2", "Conv2d", {"in_channels": 32, "out_channels": 64, "kernel_size": 3, "padding": 1}),
       ("n2", "BatchNorm2d", {"num_features": 64}), ("r2", "ReLU", {}), ("p2", "MaxPool2d", {"kernel_size": 2}),
       ("flat", "Flatten", {}), ("fc", "Linear", {"in_features": 3136, "out_features": 10})]
LSTM = [("rows", "Reshape", {"shape": "28,28"}),
        ("lstm", "LSTM", {"input_size": 28, "hidden_size": 128, "batch_first": True}),
        ("last", "SelectIndex", {"dim": 1, "index": 27}), ("fc", "Linear", {"in_features": 128, "out_features": 10})]


def torch_cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                         nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 10))


def torch_mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def pictures(count):
    return lambda: (torch.randn(count, 1, 28, 28), torch.randint(0, 10, (count,)))


def tokens(batch, seq, vocab):
    return lambda: (torch.randint(0, vocab, (batch, seq)), torch.randint(0, vocab, (batch * seq,)))


def training_graph(models, optimizer, precision, batch, data, loss=("Loss", {"type": "CrossEntropyLoss"})):
    nodes = [node("start", "Start"), *models, node("optimizer", "Optimizer", **optimizer), node("loss", loss[0], **loss[1]),
             *data, node("loader", "DataLoader", batch_size=batch, shuffle=False, drop_last=True),
             node("train", "TrainingLoop", epochs=1, max_steps=2, device="cpu", precision=precision)]
    edges = [{"id": "go", "source": "start", "target": "model", "sourceHandle": "trigger", "targetHandle": "",
              "type": "trigger"},
             edge("model", "model", "optimizer", "model"), edge("model", "model", "train", "model"),
             edge("optimizer", "optimizer", "train", "optimizer"), edge("loss", "loss_fn", "train", "loss_fn"),
             edge("data", "dataset", "loader", "dataset"), edge("loader", "dataloader", "train", "dataloader")]
    if any(n["id"] == "corpus" for n in data):
        edges += [edge("corpus", "dataset", "data", "dataset"), edge("words", "tokenizer", "data", "tokenizer")]
    return {"name": "live", "nodes": nodes, "edges": edges}


class Place:
    def __init__(self, c):
        if not os.access(c.tool.snug, os.X_OK):
            raise Skip("there is no %s yet" % c.tool.snug)
        self.snug, self.folder = c.tool.snug, tempfile.mkdtemp(prefix="snug-live-")
        make_data(os.path.join(self.folder, "data", "FashionMNIST", "raw"), 10, 256)
        with open(os.path.join(self.folder, "t.bin"), "wb") as f:
            f.write(struct.pack("<4000H", *(i * 7 % 299 for i in range(4000))))
        text = os.path.join(self.folder, "words.txt")
        with open(text, "w") as f:
            f.write("".join("word%d and word%d.\n" % (i % 37, i % 53) for i in range(400)))
        subprocess.run([self.snug, "tokenizer", "train", text, "--vocab", "300", "-o",
                        os.path.join(self.folder, "words.json")], check=True, capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def estimate(self, graph):
        path = os.path.join(self.folder, "graph.json")
        with open(path, "w") as f:
            json.dump(graph, f)
        run = subprocess.run([self.snug, "estimate", path, "--json"], capture_output=True, text=True, timeout=120,
                             env=dict(os.environ, SNUG_HOME=os.path.join(self.folder, "home")))
        document = json.loads(run.stdout)
        if run.returncode:
            raise AssertionError(document["error"])
        return document


def resnet_layers(place):
    """The layers of examples/resnet18-cifar on pictures of one channel."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "examples", "resnet18-cifar", "graph.json")) as f:
        graph = json.load(f)
    layers = next(n for n in graph["nodes"] if n["type"] == "SequentialModel")["data"]["params"]["layers"]
    return [node("model", "SequentialModel", layers=layers.replace('"in_channels":3', '"in_channels":1', 1))]


def causal(place):
    return [node("model", "CausalLMModel", vocab_size=2000, d_model=128, n_layers=3, n_heads=4, d_ff=512,
                 max_seq_len=64)]


def bert_folder(place):
    folder = os.path.join(place.folder, "bert")
    if not os.path.exists(folder):
        hf_make.make(folder, "bert", vocab_size=2000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
                     intermediate_size=512, max_position_embeddings=64, hidden_dropout_prob=0.0,
                     attention_probs_dropout_prob=0.0)
    return [node("model", "snug:PretrainedLM", path=folder)]


FASHION = [node("data", "Dataset", name="FashionMNIST", split="train", data_dir="data")]
TEXT = [node("corpus", "TextCorpusDataset", source="local_file", local_file="t.bin"),
        node("words", "LMTokenizer", file="words.json"), node("data", "LMTokenizedDataset", seq_len=64)]
TEXT_LOSS = ("LMCrossEntropyLoss", {})
NETWORKS = [
    ("MLP", torch_mlp, pictures(64), 64, sequential(MLP), FASHION, None),
    ("CNN", torch_cnn, pictures(64), 64, sequential(CNN), FASHION, None),
    ("ResNet-18", resnet18, pictures(16), 16, resnet_layers, FASHION, None),
    ("LSTM", Recurrent, pictures(64), 64, sequential(LSTM), FASHION, None),
    ("GPT-2", lambda: Gpt2(2000, 128, 3, 4, 512, 64), tokens(8, 64, 2000), 8, causal, TEXT, TEXT_LOSS),
    ("BERT", lambda: Bert(2000, 128, 3, 4, 512, 64), tokens(8, 64, 2000), 8, bert_folder, TEXT, TEXT_LOSS),
]


def rows(c):
    """[(network, optimizer, precision, PyTorch's bytes, estimated bytes)]"""
    out = []
    with Place(c) as place:
        for name, make, batch, count, models, data, loss in NETWORKS:
            for kind, params, optimizer in OPTIMIZERS:
                for precision in ("fp32", "bf16"):
                    graph = training_graph(models(place), params, precision, count, data,
                                           loss or ("Loss", {"type": "CrossEntropyLoss"}))
                    got = place.estimate(graph)["torch"]["cpu"]["peak_bytes"]
                    want = torch_live.step_peak(make, optimizer, batch, F.cross_entropy, precision == "bf16")
                    out.append((name, kind, precision, want, got))
    return out


# ids: E7
def test_live_bytes(c):
    errors = []
    for name, kind, precision, want, got in rows(c):
        error = got / want - 1
        errors.append(abs(error))
        if os.environ.get("SNUG_LIVE_ROWS"):
            print("| %s | %s | %s | %d | %d | %+.2f%% |" % (name, kind, precision, want, got, 100 * error))
    errors.sort()
    assert errors[len(errors) // 2] < 0.03 and errors[-1] < 0.10, errors
