#!/bin/sh
# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
#
# Runs on the host before the container starts, asks the container engine how it can pass on a GPU, and
# writes the answer into .env beside this file, where Compose reads it. To choose for yourself, set these
# in the environment, or in .env outside the marked lines:
#   DEVKIT_GPU      cpu
#
# It needs a POSIX shell and nothing else, and it always ends well: when in doubt, there is no GPU.

project='devkit'
deadline_s=10
begin='# devkit: found by gpu.sh and written anew at every start'
end='# devkit: end'

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 0
system=$(uname -s)
env_file=$here/.env
scratch=$here/.env.$$
umask 077

say() {
    printf 'devkit: %s\n' "$1"
}

choose() {
    mode=$1
    why=$2
}

# Run a program for at most $deadline_s seconds, with its output in $scratch. $late is set when it took longer.
ask() {
    "$@" 2>/dev/null >"$scratch" </dev/null &
    asked=$!
    {
        sleep "$deadline_s"
        kill -9 "$asked"
    } >/dev/null 2>&1 </dev/null &
    watchdog=$!
    wait "$asked" 2>/dev/null
    status=$?
    # Each shell has a number of its own for a program that was killed.
    late=''
    if [ "$status" -gt 128 ] && [ "$(kill -l "$status")" = KILL ]; then late=yes; fi
    # Waiting for it keeps Bash from telling of its death later.
    { kill -9 "$watchdog" && wait "$watchdog"; } 2>/dev/null
    return "$status"
}

answer() {
    cat "$scratch" 2>/dev/null
}

exists() {
    command -v "$1" >/dev/null 2>&1
}

ask_docker() {
    exists docker || return 1
    if ask docker info --format '{{json .}}'; then
        engine=docker
        info=$(answer)
        return
    fi
    why='the container engine does not answer'
    if [ -n "$late" ]; then why="the container engine did not answer within $deadline_s s"; fi
    return 1
}

ask_podman() {
    exists podman && ask podman info --format json || return 1
    engine=podman
    info=$(answer)
}

# Set $info to what the engine says of itself, $engine to docker, desktop, podman, or none and $why.
find_engine() {
    engine=none
    info=''
    why='no container engine was found'
    ask_docker || ask_podman
    case $info in
        *'"OperatingSystem":"Docker Desktop"'*) engine=desktop ;;
        *buildahVersion*) engine=podman ;;
    esac
    # Podman may also answer on Docker's socket; only its version tells.
    if [ "$engine" = docker ] && ask docker version --format '{{json .Server}}'; then
        case $(answer) in *Podman*) engine=podman ;; esac
    fi
}

# torch in this image computes on the CPU, so that there is nothing to pass on.
choose_for_docker() {
    choose cpu 'this dev container is planned for the CPU'
}

choose_for_desktop() {
    choose_for_docker
}

choose_for_podman() {
    choose_for_docker
}

# Set $value to what the user gives $1 in .env outside the marked lines, without quotes and comment.
users_value() {
    [ -f "$env_file" ] || return 1
    inside='' found=1
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "$begin"*) inside=yes ;;
            "$end"*) inside='' ;;
            "$1"=* | "export $1="*)
                [ -n "$inside" ] || { value=${line#*=} found=0; }
                ;;
        esac
    done <"$env_file"
    [ "$found" -eq 0 ] || return 1
    value=$(printf '%s' "${value%%' #'*}" | tr -d "\"' [:cntrl:]")
}

users_lines() {
    [ -f "$env_file" ] || return 0
    inside=''
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "$begin"*) inside=yes ;;
            "$end"*) inside='' ;;
            DEVKIT_*) [ -n "$inside" ] || printf '%s\n' "$line" ;;
            *) printf '%s\n' "$line" ;;
        esac
    done <"$env_file"
}

setting() {
    if [ -n "$2" ] && ! users_value "$1"; then
        printf '%s=%s\n' "$1" "$2"
    fi
}

find_mode() {
    choose cpu "$why"
    case $engine in
        docker) choose_for_docker ;;
        desktop) choose_for_desktop ;;
        podman) choose_for_podman ;;
    esac
    if [ -n "${DEVKIT_GPU:-}" ]; then
        choose "$DEVKIT_GPU" 'DEVKIT_GPU is set in the environment'
    fi
}

# The container's user takes the ids of this user, where the engine shares this host's ids.
find_ids() {
    uid=$(id -u) gid=$(id -g) userns=''
    if [ "$uid" -eq 0 ] || [ "$engine" = desktop ] || [ "$system" != Linux ]; then
        uid='' gid=''
    fi
    case $engine,$info in
        # Rootless Podman maps this user to the same id inside. In its machine that user has an id of the machine's.
        podman,*name=rootless* | podman,*'"rootless":true'* | podman,*'"rootless": true'*)
            userns=keep-id
            if [ "$system" != Linux ]; then userns='keep-id:uid=1000,gid=1000'; fi
            ;;
        # Rootless Docker shows this user to the container as root, and gives root no other powers.
        docker,*name=rootless*) uid=0 gid=0 ;;
    esac
}

settings() {
    users_lines
    printf '%s\n' "$begin"
    setting DEVKIT_GPU "$mode"
    setting DEVKIT_PROJECT "$project-$(printf '%s' "$here" | cksum | tr -d -c '0-9' | cut -c 1-6)"
    setting DEVKIT_UID "$uid"
    setting DEVKIT_GID "$gid"
    setting DEVKIT_USERNS "$userns"
    printf '%s\n' "$end"
}

find_engine
find_mode
find_ids
chosen=''
if [ ! -f "$here/gpu.$mode.yml" ]; then
    say "DEVKIT_GPU=$mode is none of cpu; it is left out of .env"
    mode=''
elif [ -z "${DEVKIT_GPU:-}" ] && users_value DEVKIT_GPU; then
    say "DEVKIT_GPU is taken as set in .devcontainer/.env$chosen"
else
    say "DEVKIT_GPU=$mode: $why$chosen"
fi
if [ -d "$env_file" ] || ! { settings >"$scratch.new" && mv -f "$scratch.new" "$env_file"; } 2>/dev/null; then
    say "could not write $env_file; Compose takes DEVKIT_GPU from the environment, or cpu"
fi
# No trap does this: a shell may run it in the watchdog too, which then takes away the answer.
rm -f "$scratch" "$scratch.new"
exit 0
