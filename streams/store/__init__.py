"""Task stores on disk: tables, manifests, checks and transport."""
