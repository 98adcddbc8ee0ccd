"""Parts of learning algorithms: optimisers, the meta-gradient, replay."""
