"""iCaRL a second time, plainly, for docs/reproduction/rainbow-mnist.md: is our learner weak because of a bug?

    python -m benchmarks.plain_icarl --data FOLDER [--seed 0] [--tasks 56] [--updates 50] [--loss sigmoid]

One seed of Rainbow-MNIST with an ordinary module, autograd and `torch.optim.Adam`; from `learners` it uses only the
network's definition and the pictures. Prints the error of the nearest mean and of the linear head on each task's
validation digits. `--loss`: `sigmoid` (iCaRL), `softmax`, or `prior` (sigmoid; the head's bias starts at −log 9).
"""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import learners
from learners.networks.architectures import RainbowNet
from orchestrator.protocol.source import StoreSource
from streams import recipes
from streams.build import cached
from streams.schedule import Sequential

CLASSES, POINTS, BATCHES, WIDTH, MEMORY = 10, 900, 90, 10, 2000


def herded(features: Tensor, count: int) -> Tensor:
    """Indices of the rows [n, d] whose mean, one by one, stays closest to the mean of all."""
    mean, total = features.mean(0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool)
    rows: list[int] = []
    for size in range(1, min(count, len(features)) + 1):
        distance = (mean - (total + features) / size).norm(dim=1).masked_fill(~free, np.inf)
        best = int(distance.argmin())
        rows.append(best)
        free[best] = False
        total = total + features[best]
    return torch.tensor(rows, dtype=torch.long)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_icarl", description="iCaRL, plainly.")
    parser.add_argument("--data", required=True, help="folder of MNIST")
    parser.add_argument("--seed", type=int, default=0, help="of the stream")
    parser.add_argument("--weights", type=int, default=0, help="seed of the initial weights and the draws")
    parser.add_argument("--tasks", type=int, default=56)
    parser.add_argument("--updates", type=int, default=50, help="per task")
    parser.add_argument("--loss", choices=("sigmoid", "softmax", "prior"), default="sigmoid")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.weights)
    rng = np.random.default_rng(arguments.weights)

    store = cached(recipes()["rainbow_mnist"](data=arguments.data), [arguments.seed])  # type: ignore[call-arg]
    source, views = StoreSource(store, [arguments.seed], Sequential()), store.views
    assert views is not None
    table = learners.ImageTable(store.pixels, learners.ViewArrays(views.source_index, views.geometry, views.background))
    stream = source.read(0, POINTS * arguments.tasks)
    ids, labels = torch.from_numpy(stream.image_ids[0].copy()), torch.from_numpy(stream.labels[0].copy())
    network = RainbowNet((3, 28, 28), CLASSES)
    if arguments.loss == "prior":
        nn.init.constant_(network.head.bias, -np.log(CLASSES - 1))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)

    def features(where: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [network.embed(table.gather(ids[part])) for part in where.split(256)]
        return functional.normalize(torch.cat(parts), dim=1)

    exemplars = [torch.empty(0, dtype=torch.long) for _ in range(CLASSES)]
    by_mean, by_head = [], []
    for task in range(arguments.tasks):
        start = POINTS * task
        for update in range(arguments.updates):
            seen = start + int(np.ceil((update + 1) / arguments.updates * BATCHES)) * POINTS // BATCHES
            pool = torch.cat([*exemplars, torch.arange(start, seen)])
            sample = pool[torch.from_numpy(rng.integers(len(pool), size=WIDTH))]
            logits, targets = network(table.gather(ids[sample])), labels[sample]
            if arguments.loss == "softmax":
                loss = functional.cross_entropy(logits, targets)
            else:
                hot = functional.one_hot(targets, CLASSES).float()
                loss = functional.binary_cross_entropy_with_logits(logits, hot)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        labels_of_task = labels[start : start + POINTS]
        members = [torch.cat([exemplars[c], start + (labels_of_task == c).nonzero()[:, 0]]) for c in range(CLASSES)]
        embedded = [features(of_class) for of_class in members]
        means = torch.stack([functional.normalize(rows.mean(0), dim=0) for rows in embedded])
        held_out = source.held_out([task], "validation")[0]
        x, y = table.gather(torch.from_numpy(held_out.image_ids.copy())), torch.from_numpy(held_out.labels.copy())
        with torch.no_grad():
            nearest = (functional.normalize(network.embed(x), dim=1) @ means.T).argmax(1)
            by_mean.append(float((nearest != y).float().mean()))
            by_head.append(float((network(x).argmax(1) != y).float().mean()))
        exemplars = [
            of_class[herded(rows, MEMORY // CLASSES)] for of_class, rows in zip(members, embedded, strict=True)
        ]
        if task % 10 == 9 or task == arguments.tasks - 1:
            print(
                f"{task + 1} tasks: nearest mean {np.mean(by_mean):.3f} (last 8: {np.mean(by_mean[-8:]):.3f}), "
                f"head {np.mean(by_head):.3f} (last 8: {np.mean(by_head[-8:]):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
