"""Records written in a line, and examples shown as tables of what is read and what is learned."""

from devkit.workload.finetune.records import ChatRecord, PromptRecord, RecordLocation, TextRecord

HERE = RecordLocation("data.jsonl", 3)


def turn(role, content):
    return {"role": role, "content": content}


USER, ANSWER = turn("user", "Hi"), turn("assistant", "Hello")
SECOND, LAST = turn("user", "What"), turn("assistant", "A hat")


def text(content):
    return TextRecord(content, HERE)


def prompt(asked, answered):
    return PromptRecord(asked, answered, HERE)


def chat(*messages, **differences):
    return ChatRecord(tuple(messages), HERE, **differences)


def shown(tokenizer, example):
    """The tokens of an example, what is learned of them in brackets; a blank is "_" and a line break is "/"."""
    tokens = tokenizer.convert_ids_to_tokens(list(example.ids))
    plain = ["_" if each == " " else "/" if each == "\n" else each for each in tokens]
    return " ".join(f"[{each}]" if mark else each for each, mark in zip(plain, example.loss_mask, strict=True))


def table(tokenizer, *records, sequence=100, completion_only=True):
    from devkit.workload.finetune.dataset import tokenize_records

    found = tokenize_records(records, tokenizer, sequence=sequence, completion_only=completion_only)
    return [shown(tokenizer, example) for example in found.examples]


def notes(tokenizer, *records, sequence=100):
    from devkit.workload.finetune.dataset import tokenize_records

    return tokenize_records(records, tokenizer, sequence=sequence).notes
