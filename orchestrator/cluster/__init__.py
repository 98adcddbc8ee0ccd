"""Clusters: checks of their files, and sweeps that run on one."""
