#!/bin/sh
# Run a command and end it as a scheduler does, once the run in the folder `run` has done twenty steps.
"$@" &
command=$!
until grep -qs '"event": "step", "step": 20,' run/metrics.jsonl; do
    kill -0 "$command" || exit 1
    sleep 0.05
done
kill -TERM "$command"
wait "$command"
echo "exit code $?"
