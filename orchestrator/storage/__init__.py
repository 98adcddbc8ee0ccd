"""The folder of a sweep: journal, chunk files, and copies at an address."""
