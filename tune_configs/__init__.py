"""Ready sweeps, one YAML file each."""
