#!/bin/sh
# Written by devkit 0.2.0. To change it, edit devkit.toml and run `devkit init` again.
# Asks the host's container engine how it exposes GPUs, and writes gpu.local.yml, which docker-compose.yml extends, and .env.
# If in doubt, it does not expose a GPU. To choose yourself, set in that .env or in the environment: DEVKIT_GPU=cpu|nvidia|cdi|podman
# and DEVKIT_DEVICES, such as 0,2 or MIG-... or all. If devkit is installed on this host, it replaces this script, because it supports more hosts.
if command -v devkit >/dev/null && devkit gpu-request --modes=cpu,nvidia,cdi,podman --slug=quickstart "$0" "$@" 2>/dev/null; then exit 0; fi
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
is_wsl() { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }
has_cdi() { info_has '"nvidia\.com/gpu=all"' || { info_has "$1" && printf '%s\n' "$info" | sed -e 's|.*"CDISpecDirs":\["\([^]]*\)"\].*|\1|' -e t -e 's|.*| /etc/cdi /var/run/cdi|' | tr ',"' ' \n' | xargs grep -rqsF nvidia.com/gpu; }; }
if [ "$engine" = none ]; then :
elif [ "$engine" = desktop ]; then why='Docker Desktop has no NVIDIA GPU to pass on here'
    if case $system in MINGW* | MSYS* | CYGWIN*) ask nvidia-smi -L ;; *) is_wsl && echo yes ;; esac | grep -q .; then mode=nvidia why='Docker Desktop passes on the NVIDIA GPU of Windows'; fi
elif [ -z "$(ls -d /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/* 2>/dev/null)" ] && ! is_wsl; then why='this host has no NVIDIA GPU'
elif [ "$engine" = podman ]; then why='Podman needs a CDI specification (sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml), and version 5.4 behind the socket of Docker'
    if has_cdi . && ! info_has '"ServerVersion":"([0-4]\.|5\.[0-3]\.)'; then mode=podman why='Podman, and a CDI specification of the NVIDIA GPUs'; fi
elif info_has nvidia-container-runtime && [ -e "$(command -v nvidia-container-runtime-hook || printf '%s' "$info" | sed 's/.*"path":"\([^"]*nvidia-container-runtime\)".*/\1-hook/')" ]; then mode=nvidia why='the engine has the nvidia runtime'
elif has_cdi '"ServerVersion":"(2[5-7]\.|28\.[01]\.).*"CDISpecDirs":\["'; then mode=cdi why='the engine has CDI devices for the NVIDIA GPUs'
else why='the engine has neither the nvidia runtime with its hook nor CDI devices; devkit doctor says how to add them'; fi
case ${DEVKIT_GPU:=$(of_user DEVKIT_GPU)} in '') ;; cpu | nvidia | cdi | podman) mode=$DEVKIT_GPU why='as set' ;; *) why="DEVKIT_GPU=$DEVKIT_GPU is none of cpu, nvidia, cdi, podman" mode=cpu ;; esac
devices=$(printf '%s' "${DEVKIT_DEVICES:-$(of_user DEVKIT_DEVICES)}" | tr -d ' [:cntrl:]')
chosen=${devices:+; DEVKIT_DEVICES=$devices} devices=${devices:-all} one='([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)'
# An unknown name must not select every GPU of a shared host.
if ! printf '%s\n' "$devices" | grep -Eqx "all|$one(,$one)*"; then
    mode=cpu why="DEVKIT_DEVICES=$devices names no GPUs (indices, GPU-... or MIG-... UUIDs, with commas between)" chosen=''; fi
case $mode,$devices in podman,*:*) mode=cpu why="DEVKIT_DEVICES=$devices: Podman takes a MIG slice by its MIG-... UUID alone" chosen='' ;; esac
echo "devkit: DEVKIT_GPU=$mode: $why$chosen"
overlay() { # $1 stands before each name; under SELinux a confined container may not open the device nodes
    names=$(printf '%s' "$devices" | sed "s|[^,][^,]*|\"$1&\"|g")
    which="device_ids: [$names]" && if [ "$mode,$devices" = nvidia,all ]; then which='count: all'; fi
    gpus="deploy: {resources: {reservations: {devices: [{driver: $mode, $which, capabilities: [gpu]}]}}}"
    if [ "$mode" = podman ]; then gpus="devices: [$names]\n    security_opt: [label=disable]"; fi
    printf 'services:\n  gpu:\n    %b\n    environment: [DEVKIT_GPU=%s]\n' "$gpus" "$mode"
}
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
if [ "$mode" = cpu ]; then rm -f gpu.local.yml && file=''; else overlay "$(case $mode in nvidia) ;; *) echo nvidia.com/gpu= ;; esac)" | write gpu.local.yml && file=gpu.local; fi
{ if [ -n "$users" ]; then printf '%s\n' "$users"; fi
    setting DEVKIT_GPU_FILE "$file" && setting DEVKIT_PROJECT "quickstart-$(pwd | tr -d '\n' | cksum | tr -d -c '0-9' | cut -c 1-6)"
    setting DEVKIT_UID "$uid" && setting DEVKIT_GID "$gid" && setting DEVKIT_USERNS "$userns" && setting DEVKIT_HUB "$hub" && setting DEVKIT_HUB_TOKEN "${hub:+/opt/cache/huggingface/token}"
} | write .env
