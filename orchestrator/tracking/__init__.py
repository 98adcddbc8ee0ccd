"""MLflow: one writer, and reading results back."""
