"""Fine-tuning: data, model, decisions, training loop, checkpoints, and the program that runs them."""
