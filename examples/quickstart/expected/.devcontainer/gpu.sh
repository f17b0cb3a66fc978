#!/bin/sh
# Written by devkit 0.1.0. To change it, edit devkit.toml and run `devkit init` again.
#
# Runs on the host before the container starts, asks the container engine how it can pass on a GPU, and
# writes the answer into .env beside this file, where Compose reads it. To choose for yourself, set these
# in the environment, or in .env outside the marked lines:
#   DEVKIT_GPU      cpu, nvidia, cdi, podman
#   DEVKIT_DEVICES  the GPUs to pass on, such as 0,2 or MIG-...; without it those of devkit.toml, or all
#
# It needs a POSIX shell and nothing else, and it always ends well: when in doubt, there is no GPU.

project='quickstart'
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

any_file() {
    for file in "$@"; do
        [ -e "$file" ] && return 0
    done
    return 1
}

count() {
    files=0
    for file in "$@"; do
        if [ -e "$file" ]; then files=$((files + 1)); fi
    done
    printf '%s' "$files"
}

# An engine elsewhere cannot be looked at from here; what it says of itself must do. Outside of Linux every
# engine runs in a virtual machine, or on another machine.
engine_is_here() {
    [ "$system" = Linux ] || return 1
    ask docker context inspect --format '{{.Endpoints.docker.Host}}' || return 0
    case $(answer) in
        ssh://* | tcp://* | http://* | https://*) return 1 ;;
        *) return 0 ;;
    esac
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
    socket=''
    why='no container engine was found'
    ask_docker || ask_podman
    case $info in
        *'"OperatingSystem":"Docker Desktop"'*) engine=desktop ;;
        *buildahVersion*) engine=podman ;;
    esac
    # Podman may also answer on Docker's socket; only its version tells.
    if [ "$engine" = docker ] && ask docker version --format '{{json .Server}}'; then
        case $(answer) in *Podman*) engine=podman socket=yes ;; esac
    fi
}

wsl_has_nvidia() {
    [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]
}

host_has_nvidia() {
    any_file /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/* || wsl_has_nvidia || is_jetson
}

# A Jetson's GPU is part of its processor: it has other device nodes, and no /dev/nvidia0 before JetPack 7.
is_jetson() {
    any_file /etc/nv_tegra_release /dev/nvgpu/igpu0 /dev/nvhost-gpu
}

count_gpus() {
    count /dev/nvidia[0-9]*
}

podman_has_cdi() {
    case $info in *'"nvidia.com/gpu=all"'*) return 0 ;; esac
    grep -q -s -F nvidia.com/gpu /etc/cdi/* /var/run/cdi/*
}

# On macOS and Windows Podman runs in a machine of its own.
machine_has_cdi_file() {
    exists podman || return 1
    # With a pattern that fits no file grep fails, whatever it found in others.
    ask podman machine ssh 'grep -l -s -F nvidia.com/gpu /etc/cdi/* /var/run/cdi/*'
    [ -n "$(answer)" ]
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

# Before 5.4 Podman's socket passes over CDI devices without a word: containers/podman issue 25196.
socket_drops_devices() {
    [ -n "$socket" ] || return 1
    case $info in
        *'"ServerVersion":"'[0-4].* | *'"ServerVersion":"'5.[0-3].*) return 0 ;;
        *) return 1 ;;
    esac
}

# What a user of a GPU that is cut up should know.
slices() {
    if any_file /proc/driver/nvidia/capabilities/gpu*/mig/gi*; then
        printf '%s' '; its GPUs are cut into MIG slices, and a process computes on one: name it in DEVKIT_DEVICES'
    fi
}

choose_for_podman() {
    if [ "$system" != Linux ]; then
        if machine_has_cdi_file; then
            choose podman 'the Podman machine has a CDI specification of the NVIDIA GPU'
        else
            choose cpu 'the Podman machine has no CDI specification of an NVIDIA GPU'
        fi
    elif ! host_has_nvidia; then
        choose cpu 'this host has no NVIDIA GPU'
    elif socket_drops_devices; then
        choose cpu 'through its socket Podman passes on GPUs from 5.4 on: update it, or use podman-compose with DEVKIT_GPU=podman'
    elif podman_has_cdi; then
        choose podman "Podman, and a CDI specification of the NVIDIA GPUs$(slices)"
    else
        choose cpu 'Podman needs a CDI specification of the GPUs: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'
    fi
}

choose_for_desktop() {
    case $system in
        MINGW* | MSYS* | CYGWIN*) ask nvidia-smi -L && gpus=$(answer) || gpus='' ;;
        *) wsl_has_nvidia && gpus='GPU' || gpus='' ;;
    esac
    case $gpus in
        *GPU*) choose nvidia 'Docker Desktop passes on the NVIDIA GPU of Windows' ;;
        *) choose cpu 'Docker Desktop has no NVIDIA GPU to pass on here' ;;
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
    elif [ -n "$here_too" ] && [ -n "$runtime" ] && is_jetson; then
        choose cpu 'this dev container is planned for x86_64 processors, and this is a Jetson'
    elif [ -n "$runtime" ] && { [ -z "$here_too" ] || has_hook; }; then
        choose nvidia "the engine has the nvidia runtime$(slices)"
    elif [ -n "$cdi" ]; then
        choose cdi "the engine has CDI devices for the NVIDIA GPUs$(slices)"
    elif [ -n "$runtime" ]; then
        choose cpu 'the nvidia runtime is registered, but nvidia-container-runtime-hook is missing; devkit doctor says how to add it'
    else
        choose cpu 'the engine has neither the nvidia runtime nor CDI devices; devkit doctor says how to add them'
    fi
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

are_devices() (
    IFS=,
    [ -n "$1" ] || return 1
    for device in $1; do
        case $device in
            all) [ "$1" = all ] || return 1 ;;
            '' | *[!0-9A-Za-z:-]*) return 1 ;;
            GPU-?* | MIG-?*) ;;
            *[!0-9:]* | *:*:* | :* | *:) return 1 ;;
        esac
    done
)

# The list of $devices, each in the form $1.
listed() (
    IFS=,
    list=''
    for device in $devices; do
        # shellcheck disable=SC2059 # the form is one of those below
        list=$list,$(printf "$1" "$device")
    done
    printf '%s' "${list#,}"
)

# The line of gpu.$1.yml that names the GPUs.
naming() {
    case $1 in
        nvidia) every='count: all' some='device_ids: [%s]' each='"%s"' ;;
        cdi) every='device_ids: ["nvidia.com/gpu=all"]' some='device_ids: [%s]' each='"nvidia.com/gpu=%s"' ;;
        podman) every='devices: ["nvidia.com/gpu=all"]' some='devices: [%s]' each='"nvidia.com/gpu=%s"' ;;
    esac
    # shellcheck disable=SC2059
    if [ "$devices" = all ]; then printf '%s' "$every"; else printf -- "$some" "$(listed "$each")"; fi
}

# gpu.$1.yml with $devices in the place of its own.
selected() {
    printf '# Made by gpu.sh from gpu.%s.yml, for DEVKIT_DEVICES=%s.\n' "$1" "$devices"
    while IFS= read -r line; do
        case $line in
            *'  # DEVKIT_DEVICES '*) printf '%s%s\n' "${line%%[! ]*}" "$(naming "$1")" ;;
            *) printf '%s\n' "$line" ;;
        esac
    done <"$here/gpu.$1.yml"
}

# Compose puts no list in place of a variable, so this host's own choice takes files of its own. There is one for each
# overlay, so that DEVKIT_GPU can still be changed after this.
write_selected() {
    overlay=.local
    for each_mode in cpu nvidia cdi podman; do
        # A name that was not understood must not become every GPU of a host that others use too.
        from=$each_mode
        if [ -n "$refused" ]; then from=cpu; fi
        selected "$from" >"$scratch.new" && mv -f "$scratch.new" "$here/gpu.$each_mode.local.yml"
    done
}

find_devices() {
    overlay='' refused=''
    devices=$(printf '%s' "${DEVKIT_DEVICES:-}" | tr -d ' [:cntrl:]')
    if [ -z "$devices" ] && users_value DEVKIT_DEVICES; then devices=$value; fi
    if [ -z "$devices" ]; then
        # What an earlier start chose.
        rm -f "$here"/gpu.*.local.yml
        return
    fi
    if ! are_devices "$devices"; then
        refused="DEVKIT_DEVICES=$devices names no GPUs (indices, GPU-... or MIG-... UUIDs, or all, with commas between), so the container gets none"
    elif [ "$mode" = podman ] && [ "${devices#*:}" != "$devices" ]; then
        # Compose parts a device's name at its colons before Podman sees it.
        refused="DEVKIT_DEVICES=$devices: Podman takes a MIG slice by its MIG-... UUID alone, so the container gets none"
    fi
    if [ -n "$refused" ]; then
        devices=none
        choose cpu "$refused"
    fi
    chosen="; DEVKIT_DEVICES=$devices"
    write_selected 2>/dev/null
}

# NCCL and the loader workers of each process share one /dev/shm: with more than two GPUs it takes more of it.
find_shared_memory() {
    case $devices in
        '' | all | none) gpus=$(count_gpus) ;;
        *) gpus=$(printf '%s' "$devices" | tr -d -c , | wc -c) gpus=$((gpus + 1)) ;;
    esac
    shm=''
    if [ "$gpus" -gt 2 ]; then shm=$((4 * gpus))gb; fi
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
    setting DEVKIT_OVERLAY "$overlay"
    setting DEVKIT_SHM_SIZE "$shm"
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
find_devices
find_shared_memory
if [ ! -f "$here/gpu.$mode.yml" ]; then
    say "DEVKIT_GPU=$mode is none of cpu, nvidia, cdi, podman; it is left out of .env"
    mode=''
elif [ -n "$refused" ]; then
    say "$refused"
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
