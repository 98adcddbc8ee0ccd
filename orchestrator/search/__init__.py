"""Which trial runs next, and which stops early."""
