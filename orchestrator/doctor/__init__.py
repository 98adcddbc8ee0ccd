"""Checks of a machine, a cluster or a sweep before anything runs."""
