"""Fine-tune GPT-2 on the lines of train.txt."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

MODEL = "gpt2"

tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(MODEL)


def tokenize(batch):
    """Token ids of a batch of lines; the labels are the same ids, padding included."""
    tokens = tokenizer(batch["text"], truncation=True, padding="max_length", max_length=64)
    tokens["labels"] = tokens["input_ids"].copy()
    return tokens


data = load_dataset("text", data_files="train.txt")["train"].map(tokenize, batched=True)
arguments = TrainingArguments(output_dir="model", num_train_epochs=300, per_device_train_batch_size=1)
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data).train()
model.save_pretrained("model")
tokenizer.save_pretrained("model")
