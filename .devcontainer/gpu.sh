#!/bin/sh
# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
#
# Runs on the host before the container starts, asks the container engine how it can pass on a GPU, and
# writes the answer into .env beside this file, where Compose reads it. To choose for yourself, set
# DEVKIT_GPU to nvidia, cdi, podman or cpu in the environment, or in .env outside the marked lines.
#
# It needs a POSIX shell and nothing else, and it always ends well: when in doubt, there is no GPU.

project=devkit
deadline_s=10
begin='# devkit: found by gpu.sh and written anew at every start'
end='# devkit: end'

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 0
env_file=$here/.env
scratch=$here/.env.$$
umask 077

say() {
    printf 'devkit: %s\n' "$1"
}

# Run a program for at most $deadline_s seconds, with its output in $scratch. 137: it was killed.
ask() {
    "$@" 2>/dev/null >"$scratch" </dev/null &
    asked=$!
    (
        sleep "$deadline_s"
        kill -9 "$asked"
    ) >/dev/null 2>&1 </dev/null &
    watchdog=$!
    wait "$asked" 2>/dev/null
    status=$?
    kill "$watchdog" 2>/dev/null
    return "$status"
}

answer() {
    cat "$scratch" 2>/dev/null
}

exists() {
    command -v "$1" >/dev/null 2>&1
}

any_file() {
    for file in "$@"; do
        [ -e "$file" ] && return 0
    done
    return 1
}

wsl_has_nvidia() {
    [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]
}

host_has_nvidia() {
    any_file /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/* || wsl_has_nvidia
}

has_cdi_file() {
    grep -q -s -F nvidia.com/gpu /etc/cdi/* /var/run/cdi/*
}

# Engines 25 to 27 name the folders they look in, and no devices; without CDI they name none.
engine_has_cdi_file() (
    case $info in *'"CDISpecDirs":["'*) ;; *) return 1 ;; esac
    folders=${info#*'"CDISpecDirs":['}
    IFS=,
    for folder in ${folders%%]*}; do
        folder=${folder#'"'}
        grep -q -s -F nvidia.com/gpu "${folder%'"'}"/* && return 0
    done
    return 1
)

choose() {
    mode=$1
    why=$2
}

choose_for_podman() {
    if ! host_has_nvidia; then
        choose cpu 'this host has no NVIDIA GPU'
    elif has_cdi_file; then
        choose podman 'Podman, and a CDI specification of the NVIDIA GPUs'
    else
        choose cpu 'Podman needs a CDI specification of the GPUs: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'
    fi
}

choose_for_desktop() {
    case $(uname -s) in
        MINGW* | MSYS* | CYGWIN*) ask nvidia-smi -L && gpus=$(answer) || gpus='' ;;
        *) wsl_has_nvidia && gpus='GPU' || gpus='' ;;
    esac
    case $gpus in
        *GPU*) choose nvidia 'Docker Desktop passes on the NVIDIA GPU of Windows' ;;
        *) choose cpu 'Docker Desktop has no NVIDIA GPU to pass on here' ;;
    esac
}

# An engine elsewhere cannot be looked at from here; what it says of itself must do.
engine_is_here() {
    ask docker context inspect --format '{{.Endpoints.docker.Host}}' || return 0
    case $(answer) in
        ssh://* | tcp://* | http://* | https://*) return 1 ;;
        *) return 0 ;;
    esac
}

# Docker hands out GPUs through this program alone, whatever runtimes are registered. It is on the daemon's
# PATH or beside the runtime, which may both be elsewhere than on this shell's PATH.
has_hook() {
    beside=${info#*'"nvidia":{"path":"'}
    exists nvidia-container-runtime-hook ||
        any_file /usr/bin/nvidia-container-runtime-hook /usr/local/bin/nvidia-container-runtime-hook "${beside%%'"'*}-hook"
}

choose_for_docker() {
    case $info in *nvidia-container-runtime*) runtime=yes ;; *) runtime='' ;; esac
    case $info in *'"nvidia.com/gpu=all"'*) cdi=yes ;; *) cdi='' ;; esac
    if [ -z "$cdi" ] && engine_has_cdi_file; then cdi=yes; fi
    if engine_is_here; then here_too=yes; else here_too=''; fi
    if [ -n "$here_too" ] && ! host_has_nvidia; then
        choose cpu "this host has no NVIDIA GPU${runtime:+, though its engine has the nvidia runtime}"
    elif [ -n "$runtime" ] && { [ -z "$here_too" ] || has_hook; }; then
        choose nvidia 'the engine has the nvidia runtime'
    elif [ -n "$cdi" ]; then
        choose cdi 'the engine has CDI devices for the NVIDIA GPUs'
    elif [ -n "$runtime" ]; then
        choose cpu 'the nvidia runtime is registered, but nvidia-container-runtime-hook is missing; devkit doctor says how to add it'
    else
        choose cpu 'the engine has neither the nvidia runtime nor CDI devices; devkit doctor says how to add them'
    fi
}

# Set $info to what the engine says of itself, $engine to docker, desktop, podman, or none and $why.
find_engine() {
    engine=none
    info=''
    why='no container engine was found'
    if exists docker; then
        if ask docker info --format '{{json .}}'; then
            engine=docker
            info=$(answer)
        elif [ "$status" -eq 137 ]; then
            why="the container engine did not answer within $deadline_s s"
        else
            why='the container engine does not answer'
        fi
    elif exists podman && ask podman info --format json; then
        engine=podman
        info=$(answer)
    fi
    case $info in
        *'"OperatingSystem":"Docker Desktop"'*) engine=desktop ;;
        *buildahVersion*) engine=podman ;;
    esac
    # Podman may also answer on Docker's socket; only its version tells.
    if [ "$engine" = docker ] && ask docker version --format '{{json .Server}}'; then
        case $(answer) in *Podman*) engine=podman ;; esac
    fi
}

find_mode() {
    case $engine in
        docker) choose_for_docker ;;
        desktop) choose_for_desktop ;;
        podman) choose_for_podman ;;
        *) choose cpu "$why" ;;
    esac
    if [ -n "${DEVKIT_GPU:-}" ]; then
        choose "$DEVKIT_GPU" 'DEVKIT_GPU is set in the environment'
    fi
}

# The container's user takes the ids of this user, where the engine shares this host's ids.
find_ids() {
    uid=$(id -u) gid=$(id -g) userns=''
    if [ "$engine" = podman ] && [ "$uid" -ne 0 ]; then
        userns=keep-id
    fi
    if [ "$uid" -eq 0 ] || [ "$engine" = desktop ] || [ "$(uname -s)" != Linux ]; then
        uid='' gid=''
    fi
    # Rootless Docker shows this user to the container as root, and gives root no other powers.
    case $info in *name=rootless*) uid=0 gid=0 ;; esac
}

is_users() {
    [ -f "$env_file" ] || return 1
    inside=''
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "$begin"*) inside=yes ;;
            "$end"*) inside='' ;;
            "$1"=* | "export $1="*) [ -n "$inside" ] || return 0 ;;
        esac
    done <"$env_file"
    return 1
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
    if [ -n "$2" ] && ! is_users "$1"; then
        printf '%s=%s\n' "$1" "$2"
    fi
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
if [ ! -f "$here/gpu.$mode.yml" ]; then
    say "DEVKIT_GPU=$mode is none of nvidia, cdi, podman and cpu; it is left out of .env"
    mode=''
elif [ -z "${DEVKIT_GPU:-}" ] && is_users DEVKIT_GPU; then
    say 'DEVKIT_GPU is taken as set in .devcontainer/.env'
else
    say "DEVKIT_GPU=$mode: $why"
fi
if [ -d "$env_file" ] || ! { settings >"$scratch.new" && mv -f "$scratch.new" "$env_file"; } 2>/dev/null; then
    say "could not write $env_file; Compose takes DEVKIT_GPU from the environment, or cpu"
fi
# No trap does this: a shell may run it in the watchdog too, which then takes away the answer.
rm -f "$scratch" "$scratch.new"
exit 0
