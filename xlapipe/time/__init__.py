"""How long a step takes: its cost, the prediction, measured profiles, predicted locks."""
