"""Beliefs over change points, for MOCA."""
