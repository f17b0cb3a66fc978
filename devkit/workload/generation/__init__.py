"""Text from a base model, a base model with an adapter, or a merged one."""
