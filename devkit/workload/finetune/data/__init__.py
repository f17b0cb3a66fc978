"""The data: records, readers, tokenization, the dataset, and its micro-batches."""
