#!/bin/sh
# Written by devkit 0.2.0. To change it, edit [job] in devkit.toml and run `devkit export docker` again.
#
# Run the job on this machine, or on the machine in the current Docker context:
#
# sh run.sh          start or resume it, and follow it; Ctrl-C lets it save and end
#   sh run.sh stop     let it save and end, from another terminal
#   sh run.sh copy     copy the project there; the first start does this, too
#   sh run.sh fetch    copy the output from there into the project
#
# A stopped run saves and exits with 75. This script restarts it, unless the script itself stopped it. Docker's
# restart policies cannot distinguish 75 from a failure, so none is set. If this script loses the machine or is killed, the
# container continues; start the script again.
# DEVKIT_GPU (nvidia, cdi, cpu) sets how that engine exposes GPUs, if this script cannot detect it.
# DEVKIT_DEVICES selects the GPUs, such as 0,2 or MIG-...; without it, the first 4 are used.
# HF_TOKEN from the environment is stored in a separate volume and never printed.

set -eu
# Git Bash would convert paths in the container to Windows paths.
export MSYS_NO_PATHCONV=1

name=tide
image=registry.example.org/tide/tune:1
made=f61baa39e3d6
wait_s=${DEVKIT_WAIT_S:-10}

engine() {
    docker "$@"
}

say() {
    printf 'devkit: %s\n' "$1" >&2
}

fail() {
    say "$1"
    exit 2
}

# The IDs of the container's user.
find_owner() {
    if [ -n "${owner:-}" ]; then return 0; fi
    # shellcheck disable=SC2016 # the container runs it
    owner=$(engine run --rm "$image" sh -c 'echo "$(id -u):$(id -g)"')
}

# make VOLUME MOUNT PATH creates a new volume, which would belong to root if the image has nothing at that path.
make() {
    if engine volume inspect "$1" >/dev/null 2>&1; then return 0; fi
    find_owner
    engine volume create --label "devkit.job=$name" "$1" >/dev/null
    engine run --rm --user 0:0 --mount "$2" "$image" chown "$owner" "$3"
}

find_project() {
    project=${DEVKIT_PROJECT:-$(dirname -- "$0")/../..}
    project=$(CDPATH='' cd -- "$project" && pwd)
}

copy() {
    make tide-data type=volume,source=tide-data,target=/workspaces/tide /workspaces/tide
    find_owner
    find_project
    say "copying $project"
    COPYFILE_DISABLE=1 tar -C "$project" --exclude=./.git --exclude=./.venv --exclude=./tuned -cf - . |
        engine run --rm --interactive --user "$owner" --mount type=volume,source=tide-data,target=/workspaces/tide "$image" \
            tar -C /workspaces/tide --no-same-owner -xf -
}

fetch() {
    find_project
    into=$project/tuned
    mkdir -p "$into"
    engine run --rm --mount type=volume,source=tide-checkpoints,target=/workspaces/tide/tuned "$image" \
        tar -C /workspaces/tide/tuned -cf - . |
        tar -C "$into" -xf -
    say "copied to $into"
}

keep_token() {
    [ -n "${HF_TOKEN:-}" ] || return 0
    make tide-token type=volume,source=tide-token,target=/home/dev/.config/huggingface /home/dev/.config/huggingface
    find_owner
    # shellcheck disable=SC2016 # $1 is that shell's
    printf '%s' "$HF_TOKEN" |
        engine run --rm --interactive --user "$owner" --mount type=volume,source=tide-token,target=/home/dev/.config/huggingface "$image" \
            sh -c 'umask 077 && cat >"$1"' sh /home/dev/.config/huggingface/token
}

# Each name in DEVKIT_DEVICES, or the first few numbers.
find_devices() {
    devices=${DEVKIT_DEVICES:-0,1,2,3}
    case $devices in
        *[!0-9A-Za-z:,-]* | ,* | *, | *,,*) fail "DEVKIT_DEVICES=$devices does not list GPUs" ;;
    esac
}

find_mode() {
    mode=${DEVKIT_GPU:-}
    [ -z "$mode" ] || return 0
    case $(engine info --format '{{json .}}') in
        *nvidia-container-runtime*) mode=nvidia ;;
        *'"nvidia.com/gpu=all"'*) mode=cdi ;;
        *) fail 'that engine lists neither the nvidia runtime nor CDI devices: devkit doctor shows how to add them there' ;;
    esac
}

# Create the container without starting it.
create() {
    set -- --name "$name" --label "devkit.job=$name" --label "devkit.made=$made-$mode-$devices"
    case $mode in
        nvidia)
            if [ -n "${DEVKIT_DEVICES:-}" ]; then set -- "$@" --gpus "\"device=$devices\""; else set -- "$@" --gpus 4; fi
            ;;
        cdi)
            for device in $(printf '%s' "$devices" | tr , ' '); do set -- "$@" --device "nvidia.com/gpu=$device"; done
            ;;
        cpu) say 'DEVKIT_GPU=cpu: the container gets no GPU' ;;
        *) fail "DEVKIT_GPU=$mode is not one of nvidia, cdi, cpu" ;;
    esac
    # shellcheck disable=SC2016 # the container expands these, not this shell
    engine create "$@" \
        --init \
        --workdir /workspaces/tide \
        --shm-size 17179869184 \
        --stop-signal SIGTERM \
        --stop-timeout 180 \
        --security-opt no-new-privileges:true \
        --env HF_TOKEN_PATH=/home/dev/.config/huggingface/token \
        --env PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
        --env PET_SHUTDOWN_TIMEOUT=180 \
        --env PET_NNODES=1 \
        --env PET_NPROC_PER_NODE=4 \
        --env PET_NODE_RANK=0 \
        --env PET_MASTER_ADDR=127.0.0.1 \
        --env PET_MASTER_PORT=29500 \
        --mount type=volume,source=tide-token,target=/home/dev/.config/huggingface \
        --mount type=volume,source=tide-models,target=/opt/cache/huggingface \
        --mount type=volume,source=tide-data,target=/workspaces/tide \
        --mount type=volume,source=tide-checkpoints,target=/workspaces/tide/tuned \
        "$image" \
        devkit launch torchrun \
        --no-python devkit finetune \
        --model meta-llama/Llama-3.1-8B \
        --data chats.jsonl \
        --output tuned \
        --max-length 4096 \
        --batch 32 \
        --save-every 50 >/dev/null
}

prepare() {
    make tide-models type=volume,source=tide-models,target=/opt/cache/huggingface /opt/cache/huggingface
    make tide-checkpoints type=volume,source=tide-checkpoints,target=/workspaces/tide/tuned /workspaces/tide/tuned
    if ! engine volume inspect tide-data >/dev/null 2>&1; then
        # Otherwise the next start would treat an incomplete project as complete.
        trap 'engine volume rm tide-data >/dev/null' EXIT
        copy
        trap - EXIT
    fi
    keep_token
    find_devices
    find_mode
    found=$(engine container inspect --format '{{index .Config.Labels "devkit.made"}} {{.State.Status}}' "$name" 2>/dev/null) || found=''
    case $found in
        '') create ;;
        "$made-$mode-$devices "*) ;;
        *' running') fail "$name runs with other settings: stop it first: \`sh run.sh stop\`" ;;
        *) engine container rm "$name" >/dev/null && create ;;
    esac
}

# State of the container: "running 0", "exited 75"; "" while the engine cannot be reached.
state() {
    engine container inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$name" 2>/dev/null || :
}

stop() {
    stopping=yes
    engine stop "$name" >/dev/null || :
}

# Run the container once, to its end, and follow its log: `docker start --attach` would forward Ctrl-C
# to the container, which stop() ends instead.
follow() {
    case $(state) in
        running*) ;;
        *)
            if ! engine start "$name" >/dev/null; then
                if [ -z "$(state)" ]; then return 0; fi
                fail "$name could not be started"
            fi
            seen=''
            ;;
    esac
    since=$(engine container inspect --format '{{.State.StartedAt}}' "$name") || return 0
    if [ -n "$seen" ]; then set -- --tail 0; else set -- --since "$since"; fi
    engine logs --follow "$@" "$name" &
    following=$! seen=yes
    # A signal ends `wait`, not the process that it waits for.
    while kill -0 "$following" 2>/dev/null; do wait "$following" || :; done
}

run() {
    stopping='' seen='' short=0
    trap stop INT TERM HUP
    prepare
    while :; do
        began=$(date +%s)
        if [ -n "$stopping" ]; then stop; else follow; fi
        now=$(state)
        case $now in
            'exited 75')
                if [ -n "$stopping" ]; then exit 75; fi
                short=$((short + 1))
                if [ $(($(date +%s) - began)) -ge 60 ]; then short=1; fi
                if [ "$short" -gt 5 ]; then
                    say '5 starts in a row were stopped within a minute: giving up, with 75'
                    exit 75
                fi
                say "$name was stopped, and saved: it resumes in $wait_s s"
                ;;
            exited*) exit "${now#exited }" ;;
            created*) exit 75 ;;
            '') say "the engine cannot be reached: trying again in $wait_s s" ;;
        esac
        sleep "$wait_s" &
        wait $! || :
    done
}

case ${1:-run} in
    run) run ;;
    stop) engine stop "$name" ;;
    copy) copy ;;
    fetch) fetch ;;
    *) fail "unknown command \`$1\`: see the top of this file" ;;
esac
