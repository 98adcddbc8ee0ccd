"""What runs it: configuration, plan, protocol, actors, tracking and reports. Only here: Ray and MLflow."""
