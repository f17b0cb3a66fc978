"""Fine-tuning: records to token ids, rows and batches, the training loop, and checkpoints that survive."""
