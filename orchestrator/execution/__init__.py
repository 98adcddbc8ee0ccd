"""Trials under Ray: actors, callbacks and the Ray session."""

import gc
import sys

# A process that Ray starts for an actor collects garbage less often, as commands do (`streams.command_line`): with
# Python's settings, half a second of each start is spent on the modules of torch, which stay until the end.
if any(word.endswith("default_worker.py") for word in sys.orig_argv):
    gc.set_threshold(10_000)
