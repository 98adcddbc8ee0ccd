"""Signals, processes and hardware of this machine."""
