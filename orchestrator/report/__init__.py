"""Reports: tables, charts and pages of a sweep, from its results in MLflow."""
