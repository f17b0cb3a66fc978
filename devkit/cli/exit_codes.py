"""The exit codes, the same for text and JSON."""

DONE = 0
ANSWER_IS_NO = 1
WRONG_INPUT = 2
BUG = 3
INTERRUPTED = 130
