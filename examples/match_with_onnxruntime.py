"""Match two photos with onnxruntime, numpy and Pillow alone; write the graphs first: coam export onnx -o onnx

python examples/match_with_onnxruntime.py onnx/cdunet-lite1 A.jpg B.jpg
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

SIZE, STRIDE = 512, 4  # both sides become SIZE (a multiple of 32); a descriptor for every STRIDE pixels
if len(sys.argv) != 4:
    sys.exit(f"usage: python {sys.argv[0]} onnx/cdunet-lite1 A.jpg B.jpg (first: coam export onnx -o onnx)")
model, *photos = sys.argv[1:]
graphs = [f"{model}.{part}.onnx" for part in ("encode", "decode")]
for path in (*graphs, *photos):
    if not Path(path).is_file():
        sys.exit(f"{path}: no such file; usage: python {sys.argv[0]} onnx/cdunet-lite1 A.jpg B.jpg")
encode, decode = (onnxruntime.InferenceSession(path) for path in graphs)

levels, scales = [], []
for path in photos:  # encoded once, a photo may be decoded with any number of others
    photo = Image.open(path).convert("RGB")
    scales.append(np.array(photo.size) / SIZE)
    pixels = np.asarray(photo.resize((SIZE, SIZE), Image.Resampling.BOX), np.float32) / 255
    levels += encode.run(None, {"image": pixels.transpose(2, 0, 1)[None]})
inputs = {entry.name: level for entry, level in zip(decode.get_inputs(), levels, strict=True)}
outputs = {e.name: array for e, array in zip(decode.get_outputs(), decode.run(None, inputs), strict=True)}

# Mutual nearest neighbours of the descriptors (64, cells), ranked by similarity and distinctiveness.
d0, d1 = (outputs[f"descriptors{i}"][0].reshape(64, -1) for i in (0, 1))
s0, s1 = (outputs[f"score{i}"].ravel() for i in (0, 1))
best1, best0 = (d0.T @ d1).argmax(1), (d1.T @ d0).argmax(1)
index0 = np.flatnonzero(best0[best1] == np.arange(len(best1)))
index1 = best1[index0]
worth = (d0[:, index0] * d1[:, index1]).sum(0) * s0[index0] * s1[index1]
for k in np.argsort(-worth)[:1000]:  # x0 y0 x1 y1 score, in original pixels; the first pixel's centre is 0, 0
    cells = [np.array([i % (SIZE // STRIDE), i // (SIZE // STRIDE)]) for i in (index0[k], index1[k])]
    points = [(cell + 0.5) * STRIDE * scale - 0.5 for cell, scale in zip(cells, scales, strict=True)]
    print(*(f"{x:.1f}" for point in points for x in point), f"{worth[k]:.3f}")
