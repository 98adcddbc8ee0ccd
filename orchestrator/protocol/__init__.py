"""The online protocol, its curves and metrics; no Ray."""
