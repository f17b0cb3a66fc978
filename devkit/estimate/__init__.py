"""How much memory training and inference take: pure arithmetic on a model's shape and the settings of a run."""
