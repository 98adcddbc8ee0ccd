"""Trials under Ray: actors, callbacks and the Ray session."""
