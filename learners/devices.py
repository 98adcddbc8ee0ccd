"""What a GPU must be told so that a run on it can be repeated, and agrees with one on the CPU up to rounding."""

import os

import torch


def settle(device: torch.device | str) -> None:
    """For the whole process: float32 products in float32 (no TF32), and sums in the same order every time.

    An operation of a user's own network that has no such order warns, and goes on. Nothing is done for the CPU, which
    keeps to both as it is. cuBLAS reads its part when the process first uses the GPU, so that this comes before.
    """
    if torch.device(device).type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # for debugging; it doubles the writes
