"""Configurations: reading, checking, and search spaces."""
