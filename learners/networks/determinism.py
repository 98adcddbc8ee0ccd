"""What torch must be told so that a run can be repeated, and one on a GPU agrees with one on the CPU up to rounding."""

import os

import torch


def enable(device: torch.device | str) -> None:
    """For the whole process: sums in the same order every time, and on a GPU float32 products in float32 (no TF32).

    On the CPU, several threads add up some derivatives (of `gather`, of indexing) in the order in which they happen to
    come. An operation of a user's own network that has no order warns, and goes on. cuBLAS reads its part when the
    process first uses the GPU, so that this comes before.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # for debugging; it doubles the writes
    if torch.device(device).type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
