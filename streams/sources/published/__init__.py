"""Readers of published data sets, by their names."""
