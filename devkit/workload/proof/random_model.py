"""A model of random weights as a program: `random_model.py FOLDER SIZE`, with SIZE as JSON."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Write the model, on the GPU where there is one."""
    import torch
    from transformers import LlamaConfig

    from devkit.workload.proof.models import save_random_llama

    folder, size = Path(sys.argv[1]), json.loads(sys.argv[2])
    config = LlamaConfig(
        vocab_size=size["vocabulary"],
        hidden_size=size["hidden"],
        intermediate_size=size["inner"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    save_random_llama(config, folder, seed=1)


if __name__ == "__main__":
    main()
