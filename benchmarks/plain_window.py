"""One network, softmax and Adam on the newest datapoints, for docs/reproduction.md: is MOCA's lead its window?

    python -m benchmarks.plain_window --data FOLDER [--seed 0] [--tasks 56] [--window 100]

Like MOCA, it makes one step of Adam per batch on the newest datapoints, so ten gradient evaluations per datapoint, but
with a linear head instead of Gaussians and a belief. One seed of Rainbow-MNIST, with only the network and the pictures
of `learners`. Prints the error on each task's validation digits.
"""

import argparse

import numpy as np
import torch

import learners
from learners.networks.build import build
from learners.networks.network import cross_entropy
from orchestrator.protocol.source import StoreSource
from streams import recipes
from streams.build import cached
from streams.schedule import Sequential

CLASSES, POINTS, N = 10, 900, 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_window", description="Adam on a window.")
    parser.add_argument("--data", required=True, help="folder of MNIST")
    parser.add_argument("--seed", type=int, default=0, help="of the stream and of the initial weights")
    parser.add_argument("--tasks", type=int, default=56)
    parser.add_argument("--window", type=int, default=100, help="datapoints")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    store = cached(recipes()["rainbow_mnist"](data=arguments.data), [arguments.seed])  # type: ignore[call-arg]
    source, views = StoreSource(store, [arguments.seed], Sequential()), store.views
    assert views is not None
    table = learners.ImageTable(store.pixels, learners.ViewArrays(views.source_index, views.geometry, views.background))
    stream = source.read(0, POINTS * arguments.tasks)
    ids, labels = torch.from_numpy(stream.image_ids.copy()), torch.from_numpy(stream.labels.copy())
    network = build("rainbow", store.shape, CLASSES)
    phi, statistics = network.initial([arguments.seed])
    m, s, errors = torch.zeros_like(phi), torch.zeros_like(phi), []
    for batch in range(POINTS * arguments.tasks // N):
        seen = (batch + 1) * N
        newest = slice(max(0, seen - arguments.window), seen)
        loss = cross_entropy(labels[:, newest])
        gradient = network.training_pass(phi, statistics, table.gather(ids[:, newest]), loss).gradient
        m, s = m.lerp(gradient, 0.1), s.lerp(gradient.square(), 0.001)
        step = m / (1 - 0.9 ** (batch + 1)) / ((s / (1 - 0.999 ** (batch + 1))).sqrt() + 1e-8)
        phi = phi - 1e-3 * step
        if seen % POINTS == 0:
            held_out = source.held_out([seen // POINTS - 1], "validation")[0]
            x, y = table.gather(torch.from_numpy(held_out.image_ids.copy()))[None], torch.from_numpy(held_out.labels)
            errors.append(float((network.logits(phi, statistics, x)[0].argmax(1) != y).float().mean()))
            if len(errors) % 10 == 0 or len(errors) == arguments.tasks:
                print(f"{len(errors)} tasks: {np.mean(errors):.3f} (last 8: {np.mean(errors[-8:]):.3f})", flush=True)


if __name__ == "__main__":
    main()
