"""The folder of a sweep: journal, trial files, and copies at an address."""
