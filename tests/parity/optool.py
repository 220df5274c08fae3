"""Client of build/tests/optool: sends a small program with its tensors, gets tensors back."""
import json
import subprocess

import numpy as np
import torch

NAMES = {
    torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16",
    torch.float64: "float64", torch.int64: "int64", torch.int32: "int32",
    torch.uint8: "uint8", torch.bool: "bool",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def to_bytes(t):
    """Row-major bytes; numpy has no bfloat16, so its bits travel as int16."""
    t = t.detach().contiguous()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.int16)
    return t.numpy().tobytes()


def from_bytes(data, dtype, shape):
    if dtype == torch.bfloat16:
        return from_bytes(data, torch.int16, shape).view(torch.bfloat16)
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(np.frombuffer(bytearray(data), numpy_dtype).copy()).reshape(shape)


class ToolError(Exception):
    """The program was refused, or the tool died."""


class Tool:
    def __init__(self, path):
        self.path = path
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def died(self):
        self.process.stdin.close()
        text = self.process.stderr.read().decode(errors="replace").strip()
        status = self.process.wait()
        self.process = None
        return ToolError("optool died with status %d: %s" % (status, text[-600:]))

    def run(self, inputs, steps, outputs=(), vars=(), backward=None, upstream=None, **options):
        """inputs: [(name, tensor, kind)], kind "input", "param", "buffer", "late" (made by a pass),
        "each" or "late each" (a leading dimension of runs). Answers ({name: tensor or None}, the answer's other fields)."""
        if not self.process:
            self.start()
        request = dict(options, steps=steps, outputs=list(outputs), vars=list(vars), inputs=[])
        if backward:
            request["backward"] = backward
        if upstream:
            request["upstream"] = upstream
        payload = b""
        for name, tensor, kind in inputs:
            shape = list(tensor.shape)
            row = {"name": name, "dtype": NAMES[tensor.dtype], "kind": kind, "shape": shape}
            if "each" in kind:
                row.update(kind="late" if "late" in kind else "input", each=True, shape=shape[1:])
            request["inputs"].append(row)
            payload += to_bytes(tensor)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n" + payload)
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise self.died()
        answer = json.loads(line)
        tensors = {}
        for row in answer.pop("tensors"):
            if row["dtype"] == "none":
                tensors[row["name"]] = None
                continue
            dtype = DTYPES[row["dtype"]]
            count = int(np.prod(row["shape"], dtype=np.int64))
            size = torch.empty(0, dtype=dtype).element_size()
            tensors[row["name"]] = from_bytes(
                self.process.stdout.read(count * size), dtype, row["shape"])
        if answer["status"] != "ok":
            raise ToolError(answer["error"])
        return tensors, answer
