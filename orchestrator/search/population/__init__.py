"""Population-based training: decisions, rounds, and the segments that members train."""
