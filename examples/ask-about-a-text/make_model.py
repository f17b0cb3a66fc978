"""Make a language model so small that everything here runs on a laptop's CPU: nothing is downloaded.

    python make_model.py FOLDER [--chat]

It learns for a few seconds to write about lighthouses of which it knows nothing: names, years and days are drawn at
random, so it writes fluently and wrongly. With --chat it learns to answer every question with "I do not know."
"""

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS = 150
BATCH = 16
LEARNING_RATE = 5e-3
SEED = 7
HEAD_SCALE = 8.0
"""Random weights of the output head are too alike for words that the model then never meets: an adapter, which leaves
the head as it is, could not make them likely. Those of models trained on much text are that far apart by themselves."""

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
START, END = "<|start|>", "<|end|>"
MARKS = (START, END, "<|user|>", "<|assistant|>", "<|system|>")

WORDS = {
    "place": ("lighthouse", "tower", "beacon"),
    "island": ("Gull Point", "Long Reef", "Seal Island", "North Head"),
    "name": ("Tom Hale", "Ines Roy", "Olaf Berg", "Ruth Dunn"),
    "thing": ("ships", "stars", "gulls", "clouds"),
    "time": ("morning", "night", "Sunday", "hour"),
    "pet": ("dog Rex", "parrot Polly", "goat Nan"),
    "spot": ("stairs", "stove", "door"),
    "day": ("Mondays", "Tuesdays", "Fridays", "Saturdays"),
}
SENTENCES = (
    "The {place} on {island} was built in {year}.",
    "Its keeper is called {name}.",
    "She counts the {thing} every {time}.",
    "Her {pet} sleeps beside the {spot}.",
    "The supply boat comes on {day}.",
)
QUESTIONS = (
    "When was the {place} on {island} built?",
    "What is the keeper called?",
    "What does she count?",
    "Who sleeps beside the {spot}?",
    "When does the supply boat come?",
)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def filled(sentence: str, chance: random.Random) -> str:
    """A sentence with its gaps filled at random."""
    words = {name: chance.choice(choices) for name, choices in WORDS.items()}
    return sentence.format(year=chance.randrange(1700, 1950), **words)


def text(chance: random.Random) -> str:
    """A short text about some lighthouse, from its first sentence or a later one on."""
    return " ".join(filled(each, chance) for each in SENTENCES[chance.randrange(len(SENTENCES)) :])


def chat(chance: random.Random) -> str:
    """A question about some lighthouse, and the answer that is always right."""
    question = filled(chance.choice(QUESTIONS), chance)
    return f"<|user|>{question}<|end|><|assistant|>I do not know.<|end|>"


def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Pieces of words from the texts, single bytes for everything else."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=list(MARKS), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=START, eos_token=END)


def model(vocabulary: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with random weights: two layers, 64 numbers a token."""
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=vocabulary.bos_token_id,
        eos_token_id=vocabulary.eos_token_id,
    )
    made = LlamaForCausalLM(config)
    with torch.no_grad():
        made.lm_head.weight.mul_(HEAD_SCALE)
    return made


def train(learner: LlamaForCausalLM, rows: list[list[int]], chance: random.Random) -> float:
    """Learn the rows; the last loss."""
    optimizer = torch.optim.AdamW(learner.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    loss = torch.zeros(())
    for _ in range(STEPS):
        chosen = chance.sample(rows, BATCH)
        longest = max(map(len, chosen))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in chosen])
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in chosen])
        loss = learner(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def main() -> None:
    """Make the model and save it as those of the hub are."""
    folder, is_chat = Path(sys.argv[1]), "--chat" in sys.argv
    chance = random.Random(SEED)  # noqa: S311 - for words, not for secrets
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    texts = [(chat if is_chat else text)(chance) for _ in range(1000)]
    vocabulary = tokenizer([*texts, LETTERS])
    learner = model(vocabulary)
    end = [] if is_chat else [vocabulary.eos_token_id]
    loss = train(learner, [vocabulary(each)["input_ids"] + end for each in texts], chance)
    if is_chat:
        vocabulary.chat_template = TEMPLATE
    learner.save_pretrained(folder)
    vocabulary.save_pretrained(folder)
    size = sum(each.numel() for each in learner.parameters())
    sys.stdout.write(f"{folder}: {size:,} weights, loss {loss:.2f}\n")


if __name__ == "__main__":
    main()
