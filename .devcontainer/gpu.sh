#!/bin/sh
# Written by devkit 0.2.0. To change it, edit devkit.toml and run `devkit init` again.
# Asks the host's container engine how it exposes GPUs, and writes gpu.local.yml, which docker-compose.yml extends, and .env.
# If in doubt, it does not expose a GPU. To choose yourself, set in that .env or in the environment: DEVKIT_GPU=cpu
umask 077 && CDPATH='' cd -- "$(dirname -- "$0")" || exit 0
users=$(grep -v ' # gpu\.sh$' .env 2>/dev/null) # the user's lines of it
of_user() { printf '%s\n' "$users" | sed -n "s/^\(export \)\{0,1\}$1=//p" | sed '$!d; s/ #.*//' | tr -d "\"' [:cntrl:]"; }
setting() { if [ -n "$2" ] && [ -z "$(of_user "$1")" ]; then printf '%s=%s # gpu.sh\n' "$1" "$2"; fi; }
ask() { if command -v timeout >/dev/null; then timeout -s KILL 10 "$@"; else perl -e 'alarm 10; exec @ARGV or exit 1' "$@"; fi 2>/dev/null </dev/null || return 1; }
engine=none system=$(uname -s) mode=cpu why='no container engine answers'
if info=$(ask docker info --format '{{json .}}'); then engine=docker; elif info=$(ask podman info --format json); then engine=podman; else info=''; fi
info=$(printf '%s' "$info" | tr -d '[:space:]'); info_has() { printf '%s' "$info" | grep -Eq "$1"; }
case $info,$(ask docker version --format '{{json .Server}}') in
    *'"OperatingSystem":"DockerDesktop"'*) engine=desktop ;;
    *buildahVersion* | *?,*Podman*) engine=podman ;; # by its own name, by Docker's, or behind Docker's socket
esac
why='this dev container is planned for the CPU'
case ${DEVKIT_GPU:=$(of_user DEVKIT_GPU)} in '') ;; cpu) mode=$DEVKIT_GPU why='as set' ;; *) why="DEVKIT_GPU=$DEVKIT_GPU is none of cpu" mode=cpu ;; esac
echo "devkit: DEVKIT_GPU=$mode: $why"
uid=$(id -u) gid=$(id -g) userns='' # the container's user has them, or those of the project's owner where root opens it
if [ "$uid" -eq 0 ]; then uid=$(stat -c %u .. 2>/dev/null) gid=$(stat -c %g .. 2>/dev/null); fi
# This host's hub folder, with its models and its token, if this user owns it. An engine would create a missing folder as root.
hub=$(printf '%s' "${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}" | grep -Ex '/[A-Za-z0-9._/-]+')
case $system,${HF_HUB_CACHE:-$hub/hub} in "Linux,$hub/hub" | "Darwin,$hub/hub") if [ ! -d "$hub" ] || [ -h "$hub/hub" ] || [ -n "$(find "$hub" "$hub/hub" "$hub/xet" -prune ! -user "$uid" 2>/dev/null)" ]; then hub=''; fi ;; *) hub='' ;; esac
if [ -n "$hub" ]; then case $(ask docker context inspect --format '{{.Endpoints.docker.Host}}') in ssh:* | tcp:* | http*) hub='' ;; esac; fi
case $engine,$system,$info in # rootless Podman keeps this user's id, rootless Docker makes it root without root's powers
    podman,Linux,*name=rootless* | podman,Linux,*'"rootless":true'*) userns=keep-id ;; docker,Linux,*name=rootless*) uid=0 gid=0 ;;
    desktop,* | docker,[!L]* | podman,[!L]* | none,[!L]*) uid='' gid='' ;;
esac
write() { { [ ! -d "$1" ] && cat >"$1.$$" && mv -f "$1.$$" "$1"; } 2>/dev/null || { rm -f "$1.$$" && echo "devkit: could not write $1"; }; }
{ if [ -n "$users" ]; then printf '%s\n' "$users"; fi
    setting DEVKIT_PROJECT "devkit-$(pwd | tr -d '\n' | cksum | tr -d -c '0-9' | cut -c 1-6)"
    setting DEVKIT_UID "$uid" && setting DEVKIT_GID "$gid" && setting DEVKIT_USERNS "$userns" && setting DEVKIT_HUB "$hub" && setting DEVKIT_HUB_TOKEN "${hub:+/opt/cache/huggingface/token}"
} | write .env
