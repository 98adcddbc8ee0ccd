"""A sweep's folder: journal, trial files, and copies at a remote address."""
