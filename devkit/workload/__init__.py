"""The training and inference code; the only importer of torch, transformers, peft and bitsandbytes."""
