"""Learners of my own."""
