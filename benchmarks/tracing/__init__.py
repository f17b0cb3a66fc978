"""How much memory a run takes, read off the real program: traced on tensors without data, then replayed on paper."""
