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


def main():
    net, precision = sys.argv[1:3]
    threads, batch, warm, steps = (int(x) for x in sys.argv[3:7])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
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
