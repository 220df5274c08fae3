"""train_torch.py - PyTorch's side of bench/train: one network, one precision, one JSON line.

    train_torch.py NET PRECISION THREADS BATCH WARM STEPS

Batches are made before the clock starts, so that no reading of data is counted.
"""
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(cout)
        self.skip = None
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + (self.skip(x) if self.skip else x), inplace=True)


def resnet18():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    cin = 64
    for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(cin, cout, stride), Block(cout, cout, 1)]
        cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def fashion_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(inplace=True), nn.Dropout(0.25), nn.Linear(128, 10))


class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, hidden):
        b, s, e = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(e, 2))
        p = (q @ k.transpose(2, 3) * (1.0 / (e // self.heads) ** 0.5)).masked_fill(hidden, float("-inf"))
        y = (F.softmax(p, -1) @ v).transpose(1, 2).reshape(b, s, e)
        x = x + self.c_proj(y)
        return x + self.out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT2(nn.Module):
    """GPT-2 124M: 12 blocks of 768, 12 heads, the head tied to the embedding."""

    def __init__(self, vocabulary=50257, positions=1024, width=768, blocks=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(GPT2Block(width, heads) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
        self.register_buffer("hidden", torch.ones(positions, positions, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, tokens):
        s = tokens.shape[1]
        x = self.wte(tokens) + self.wpe.weight[:s]
        for block in self.h:
            x = block(x, self.hidden[:s, :s])
        return F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1)


def language_model(batch, length):
    """Model, optimizer and batches: random tokens and the ones that follow."""
    model = GPT2()
    rows = [torch.randint(0, 50257, (batch, length + 1)) for _ in range(4)]
    batches = [(r[:, :-1].contiguous(), r[:, 1:].reshape(-1)) for r in rows]
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01), batches


def main():
    net, precision = sys.argv[1:3]
    threads, batch, warm, steps = (int(x) for x in sys.argv[3:7])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    if net.startswith("gpt2-124m-"):
        model, optimizer, batches = language_model(batch, int(net.rsplit("-", 1)[1]))
    else:
        model, optimizer, batches = image_model(net, batch)
    train(model, optimizer, batches, precision, batch, warm, steps)


def image_model(net, batch):
    if net == "resnet18":
        model, shape = resnet18(), (batch, 3, 32, 32)
        optimizer_of = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        model, shape = fashion_cnn(), (batch, 1, 28, 28)
        optimizer_of = lambda p: torch.optim.Adam(p, lr=1e-3)
    model = model.to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model.parameters())
    batches = [(torch.randn(shape).contiguous(memory_format=torch.channels_last), torch.randint(0, 10, (batch,)))
               for _ in range(4)]
    return model, optimizer, batches


def train(model, optimizer, batches, precision, batch, warm, steps):
    begin = 0.0
    for i in range(warm + steps):
        if i == warm:
            begin = time.perf_counter()
        x, y = batches[i % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    print(json.dumps({"images_per_s": steps * batch / seconds, "loss": loss.item()}))


if __name__ == "__main__":
    main()
