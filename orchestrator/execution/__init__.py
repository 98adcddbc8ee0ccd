"""Trials under Ray: actors, callbacks and the Ray session."""

import sys

from streams.command_line import collect_less_garbage

if any(word.endswith("default_worker.py") for word in sys.orig_argv):  # a process of Ray's, for an actor
    collect_less_garbage()
