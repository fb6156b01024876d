"""Several models trained on the same data, measured side by side (M10): one report of them all."""
