"""Population-based training: decisions, generations, and the segments that members train."""
