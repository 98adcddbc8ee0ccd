"""Parts shared by the algorithms: model, optimisers, meta-gradient, replay buffer, update budget, exemplars."""
