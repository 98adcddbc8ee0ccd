"""Which trial starts next, and which ones stop early."""
