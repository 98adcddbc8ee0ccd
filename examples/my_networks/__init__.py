"""A network of one's own, for the sweep own_network.yaml."""
