"""Deterministic PyTorch operations, so that runs can be repeated and a GPU agrees with the CPU up to rounding."""

import os

import torch


def enable(device: torch.device | str) -> None:
    """Make the whole process sum in a fixed order, and multiply float32 matrices in float32 on a GPU (no TF32).

    Without this, several CPU threads add up some derivatives (of `gather`, of indexing) in varying order. An operation
    of a user's network that has no deterministic implementation warns and continues. cuBLAS reads its environment
    variable when the process first uses the GPU, so this must be called before.
    """
    # The same as `torch.use_deterministic_algorithms(True, warn_only=True)`, which also imports torch's compiler and
    # SymPy (more than a second of processor time and 100 MB in each process) to set one of the compiler's options.
    torch.set_deterministic_debug_mode("warn")
    # A debugging aid that deterministic mode turns on: it fills each new tensor, which doubles the writes.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.device(device).type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
