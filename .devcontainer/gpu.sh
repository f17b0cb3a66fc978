#!/bin/sh
# Written by devkit 0.2.0. To change it, edit devkit.toml and run `devkit init` again.
# Finds out on the host, before a start, how its container engine passes on a GPU. The answer goes into gpu.local.yml, which
# docker-compose.yml extends, and into .env beside it. In doubt there is no GPU, and no error.
# To choose for yourself, set in that .env or in the environment:
#   DEVKIT_GPU      cpu
CDPATH='' cd -- "$(dirname -- "$0")" || exit 0
umask 077
env_file=.env
users=$(grep -v ' # gpu\.sh$' "$env_file" 2>/dev/null) # the user's lines of it
system=$(uname -s)
choose() { mode=$1 why=$2; }
of_user() { printf '%s\n' "$users" | sed -n "s/^\(export \)\{0,1\}$1=//p" | sed '$!d; s/ #.*//' | tr -d "\"' [:cntrl:]"; }
setting() { if [ -n "$2" ] && [ -z "$(of_user "$1")" ]; then printf '%s=%s # gpu.sh\n' "$1" "$2"; fi; }
# What a program answers within 10 s. macOS has no timeout, and Perl in its place.
ask() {
    if command -v timeout >/dev/null; then timeout -s KILL 10 "$@"; else perl -e 'alarm 10; exec @ARGV or exit 1' "$@"; fi 2>/dev/null </dev/null || return 1
}
engine=none
ask_docker() { info=$(ask docker info --format '{{json .}}') && engine=docker; }
ask_podman() { info=$(ask podman info --format json) && engine=podman; }
ask_docker || ask_podman || info=''
case $info in
    *'"OperatingSystem":"Docker Desktop"'*) engine=desktop ;;
    *buildahVersion*) engine=podman ;; # by Docker's name, and below on Docker's socket
    *?) case $(ask docker version --format '{{json .Server}}') in *Podman*) engine=podman ;; esac ;;
esac
choose cpu 'no container engine answers'
choose cpu 'this dev container is planned for the CPU'

wanted=${DEVKIT_GPU:-$(of_user DEVKIT_GPU)}
case $wanted in
    '') ;;
    cpu) choose "$wanted" 'as set' ;;
    *) choose cpu "DEVKIT_GPU=$wanted is none of cpu" ;;
esac
echo "devkit: DEVKIT_GPU=$mode: $why"

# The container's user takes the ids of this user, where the engine shares this host's.
uid=$(id -u) gid=$(id -g) userns=''
# Root opens a project for its owner. What belongs to root itself, only root can write to.
# shellcheck disable=SC2046
if [ "$uid" -eq 0 ]; then set -- $(ls -ldn ..) && uid=$3 gid=$4; fi
if [ "$engine" = desktop ] || [ "$system" != Linux ]; then uid='' gid=''; fi
case $engine,$info in
    # Rootless Podman maps this user to the same id inside; elsewhere than on Linux it is its machine's user.
    podman,*name=rootless* | podman,*'"rootless":true'* | podman,*'"rootless": true'*) userns=keep-id ;;
    docker,*name=rootless*) uid=0 gid=0 ;; # it shows this user to the container as root without root's powers
esac
if [ -n "$userns" ] && [ "$system" != Linux ]; then userns='keep-id:uid=1000,gid=1000'; fi

write() { # renamed into place, so that Compose never reads half a file
    { [ ! -d "$1" ] && cat >"$1.$$" && mv -f "$1.$$" "$1"; } 2>/dev/null || { rm -f "$1.$$" && echo "devkit: could not write $1"; }
}
{
    if [ -n "$users" ]; then printf '%s\n' "$users"; fi
    setting DEVKIT_PROJECT "devkit-$(pwd | tr -d '\n' | cksum | tr -d -c '0-9' | cut -c 1-6)"
    setting DEVKIT_UID "$uid" && setting DEVKIT_GID "$gid" && setting DEVKIT_USERNS "$userns"
} | write "$env_file"
exit 0
