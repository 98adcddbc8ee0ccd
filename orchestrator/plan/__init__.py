"""From a configuration to trials with hashes."""
