#!/bin/sh
# The main job on this machine: look, plan and write a dev container, prove fine-tuning. Ends with one plain line.
set -eu
devkit=$PWD/.venv/bin/devkit
project=.demo/quickstart

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

# A real answer before and after a real fine-tune: make demo MODEL=smollm2-135m
if [ -n "${MODEL:-}" ]; then
    question="What is the keeper called?"
    tuned=.demo/tuned
    echo "==> devkit model fetch $MODEL"
    "$devkit" model fetch "$MODEL"
    echo "==> devkit generate, before: $question"
    "$devkit" generate --model "$MODEL" --prompt "$question" --tokens 32
    echo "==> devkit finetune on the four chats of examples/chat-fine-tune"
    rm -rf "$tuned"
    "$devkit" finetune --model "$MODEL" --data examples/chat-fine-tune/chats.jsonl --output "$tuned" \
        --batch 4 --steps 10 --learning-rate 1e-3
    echo "==> devkit generate, after: $question"
    answer=$("$devkit" generate --adapter "$tuned/adapter" --prompt "$question" --tokens 32)
    echo "$answer"
    case $answer in
    *"Marta Lind"*) echo "==> $MODEL learned the keeper's name on this machine; the adapter is $tuned/adapter" ;;
    *)
        echo "==> $MODEL did not learn the keeper's name: more steps may help"
        exit 1
        ;;
    esac
    exit 0
fi

# Its last line says in plain words what was proven, and is the demo's.
echo "==> devkit verify --here"
exec "$devkit" verify --here --output .demo/verify.json
