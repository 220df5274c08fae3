#!/usr/bin/python3
"""Writes tests/corpus/data/cifar/*.pickle: batches of 6 images in the forms that Python writes.

Pixels are a formula that src/data/dataset_test.c knows too. python2.pickle is assembled byte by
byte in the form of the published CIFAR-10 archive, which Python 2 wrote.
"""
import pickle
import struct
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1] / "corpus" / "data" / "cifar"


def python2(data):
    """Protocol 2 with str as bytes, the memo used, as cPickle did."""
    raw = data.tobytes()
    short = lambda s: b"U" + bytes([len(s)]) + s
    out = b"\x80\x02}q\x01(" + short(b"batch_label") + b"q\x02" + short(b"training batch 1 of 5")
    out += b"q\x03" + short(b"labels") + b"q\x04]q\x05("
    out += b"".join(b"K" + bytes([k]) for k in range(len(data))) + b"e"
    out += short(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08"
    out += b"K\x00\x85q\x09" + short(b"b") + b"q\x0a\x87Rq\x0b(K\x01M" + struct.pack("<H", len(data))
    out += b"M\x00\x0c\x86cnumpy\ndtype\nq\x0c" + short(b"u1") + b"q\x0dK\x00K\x01\x87Rq\x0e(K\x03"
    out += short(b"|") + b"q\x0fNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
    out += struct.pack("<I", len(raw)) + raw + b"tb" + short(b"filenames") + b"]q\x10(h\x02h\x03eu."
    return out


def main():
    ROOT.mkdir(parents=True, exist_ok=True)
    k, i = np.mgrid[0:6, 0:3072]
    data = ((k * 31 + (i // 1024) * 101 + (i % 1024) * 7) % 256).astype(np.uint8)
    labels = list(range(6))
    batch = {b"batch_label": b"one", b"labels": labels, b"data": data, b"filenames": ["a.png"] * 6}
    text = {"data": data, "filenames": ["a", "b"], "labels": labels}
    fine = {"coarse_labels": [1] * 6, "fine_labels": [9 * n for n in range(6)], "data": data}
    (ROOT / "batch4.pickle").write_bytes(pickle.dumps(text, 4))
    (ROOT / "batch2.pickle").write_bytes(pickle.dumps(batch, 3))
    (ROOT / "fortran.pickle").write_bytes(
        pickle.dumps({"data": np.asfortranarray(data), "labels": labels}, 4))
    (ROOT / "hundred.pickle").write_bytes(pickle.dumps(fine, 4))
    written = python2(data)
    assert (pickle.loads(written, encoding="bytes")[b"data"] == data).all()
    (ROOT / "python2.pickle").write_bytes(written)


if __name__ == "__main__":
    main()
