"""What is known of GPUs: the catalogue, devices' own configurations, and how to read such text."""
