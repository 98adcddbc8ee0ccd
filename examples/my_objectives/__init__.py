"""Objectives of my own."""
