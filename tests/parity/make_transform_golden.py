#!/usr/bin/python3
"""Writes tests/corpus/data/transform_golden.bin.gz: what torchvision and Pillow make of small images.

Each record: operation name, parameters, input image, output image (8-bit, H,W,C). The C test
src/data/transform_test.c replays them and wants the same bytes. Run with Debian 12's
python3-torchvision (0.14.1) and python3-pil (9.4.0):

    /usr/bin/python3 tests/parity/make_transform_golden.py
"""
import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op
from torchvision.transforms.functional import InterpolationMode as M

ROOT = Path(__file__).resolve().parents[1] / "corpus" / "data"
rng = np.random.default_rng(7)


def picture(h, w, c):
    """Smooth colours with noise on top: neither flat nor white noise."""
    y, x = np.mgrid[0:h, 0:w]
    planes = [127 + 100 * np.sin(x / (3 + k) + k) * np.cos(y / (4 - k)) for k in range(c)]
    a = np.stack(planes, -1) + rng.normal(0, 20, (h, w, c))
    a = np.clip(a, 0, 255).astype(np.uint8)
    return Image.fromarray(a[:, :, 0] if c == 1 else a)


def dark(h, w):
    return Image.fromarray(rng.integers(40, 90, (h, w, 3), dtype=np.uint8))


def pixels(im):
    a = np.asarray(im)
    return a[:, :, None] if a.ndim == 2 else a


def record(out, name, params, before, after):
    a, b = pixels(before), pixels(after)
    params = list(params) + [0.0] * (4 - len(params))
    out.append(struct.pack("<24s4d6i", name.encode(), *params, *a.shape, *b.shape))
    out.append(a.tobytes() + b.tobytes())


def every_colour():
    """A coarse grid over all colours, for the conversions to and from HSV."""
    v = np.arange(0, 256, 15, dtype=np.uint8)
    g = np.stack(np.meshgrid(v, v, v, indexing="ij"), -1).reshape(-1, v.size, 3)
    return Image.fromarray(g)


def main():
    out = []
    grey, rgb, small = picture(28, 28, 1), picture(21, 33, 3), picture(7, 5, 3)
    filters = [M.NEAREST, M.BILINEAR, M.BICUBIC]
    for im in (grey, rgb, small):
        for size in (5, 16, 28, 32, 47):
            for k, f in enumerate(filters):
                record(out, "resize", [size, k], im, T.Resize((size, size), f)(im))
    for im in (grey, rgb):
        record(out, "flip", [], im, F.hflip(im))
        for expand in (0, 1):
            for angle in (0, 7.25, -33.3, 90, 180, 270, -90, 135, -179.5):
                for fill in (0, 77):
                    got = F.rotate(im, angle, expand=bool(expand), fill=fill)
                    record(out, "rotate", [angle, expand, fill], im, got)
        for k, mode in enumerate(("constant", "edge", "reflect", "symmetric")):
            for pad, size, x, y in ((4, 20, 0, 0), (4, 20, 8, 5), (9, 21, 11, 3)):
                padded = F.pad(im, pad, 0, mode)
                got = F.crop(padded, y, x, size, size)
                record(out, "crop%d" % pad, [x, y, size, k], im, got)
    for k, mode in enumerate(("constant", "edge", "reflect", "symmetric")):
        got = F.crop(F.pad(small, 13, 0, mode), 2, 1, 24, 24)
        record(out, "crop13", [1, 2, 24, k], small, got)
    for im in (grey, rgb, dark(16, 16), every_colour()):
        for f in (0.0, 0.35, 0.8, 1.0, 1.3, 1.9):
            record(out, "brightness", [f], im, F.adjust_brightness(im, f))
            record(out, "contrast", [f], im, F.adjust_contrast(im, f))
            record(out, "saturation", [f], im, F.adjust_saturation(im, f))
        for f in (-0.5, -0.13, -0.002, 0.0, 0.1, 0.37, 0.5):
            record(out, "hue", [f], im, F.adjust_hue(im, f))
    signed = {"ShearX": 0.3, "ShearY": 0.3, "TranslateX": 9.7, "TranslateY": 5.2, "Rotate": 30,
              "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9}
    for im in (grey, rgb, dark(16, 16)):
        for name, most in signed.items():
            for part in (-1, -0.31, 0.31, 1):
                m = float(np.float32(most * part))
                record(out, name, [m], im, _apply_op(im, name, m, M.NEAREST, None))
        for bits in (4, 5, 7, 8):
            record(out, "Posterize", [bits], im, _apply_op(im, "Posterize", bits, M.NEAREST, None))
        for t in (0.0, 100.5, 178.5, 255.0):
            record(out, "Solarize", [t], im, _apply_op(im, "Solarize", t, M.NEAREST, None))
        for name in ("AutoContrast", "Equalize", "Identity"):
            record(out, name, [0], im, _apply_op(im, name, 0.0, M.NEAREST, None))
    flat = Image.fromarray(np.full((6, 6, 3), 93, np.uint8))
    for name in ("AutoContrast", "Equalize"):
        record(out, name, [0], flat, _apply_op(flat, name, 0.0, M.NEAREST, None))
    ROOT.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(b"".join(out), mtime=0)
    (ROOT / "transform_golden.bin.gz").write_bytes(packed)
    numbers()
    pictures()


def numbers():
    """ToTensor and Normalize of every byte: float32 bits, one row of 256 per preset and channel."""
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, 2)
    presets = [((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
               ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
               ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
               ((0.5,), (0.5,))]
    rows = []
    for mean, std in presets:
        t = T.Compose([T.ToTensor(), T.Normalize(mean, std)])
        rows.append(t(Image.fromarray(ramp)).numpy().astype("<f4").tobytes())
    ROOT.joinpath("normalize_golden.bin").write_bytes(b"".join(rows))


def pictures():
    """Small files of each kind that people have, and Pillow's convert("RGB") of them."""
    folder = ROOT / "pictures"
    folder.mkdir(exist_ok=True)
    rgb, grey = picture(13, 17, 3), picture(9, 11, 1)
    rgba = rgb.copy()
    rgba.putalpha(Image.fromarray(rng.integers(0, 256, (13, 17), dtype=np.uint8)))
    files = {
        "rgb.png": (rgb, {}), "grey.png": (grey, {}), "rgba.png": (rgba, {}),
        "palette.png": (rgb.quantize(32), {}), "bits.png": (grey.convert("1"), {}),
        "grey_alpha.png": (rgba.convert("LA"), {}),
        "rgb.jpg": (rgb, {"quality": 90}), "grey.jpg": (grey, {}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "subsampled.jpg": (rgb, {"subsampling": 2}), "cmyk.jpg": (rgb.convert("CMYK"), {}),
    }
    for name, (im, options) in files.items():
        im.save(folder / name, **options)
        got = np.asarray(Image.open(folder / name).convert("RGB"))
        head = struct.pack("<2i", got.shape[1], got.shape[0])
        (folder / (name + ".rgb")).write_bytes(head + got.tobytes())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
