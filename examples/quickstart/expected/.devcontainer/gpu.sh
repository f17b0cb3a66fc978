#!/bin/sh
# Written by devkit 0.2.0. To change it, edit devkit.toml and run `devkit init` again.
# Finds out on the host, before a start, how its container engine passes on a GPU. The answer goes into gpu.local.yml, which
# docker-compose.yml extends, and into .env beside it. In doubt there is no GPU, and no error.
# To choose for yourself, set in that .env or in the environment:
#   DEVKIT_GPU      cpu, nvidia, cdi, podman
#   DEVKIT_DEVICES  the GPUs to pass on: all, or such as 0,2 or MIG-...

CDPATH='' cd -- "$(dirname -- "$0")" || exit 0
umask 077
env_file=.env
users=$(grep -v ' # gpu\.sh$' "$env_file" 2>/dev/null) # the user's lines of it
system=$(uname -s)
choose() { mode=$1 why=$2; }
of_user() { printf '%s\n' "$users" | sed -n "s/^\(export \)\{0,1\}$1=//p" | sed '$!d; s/ #.*//' | tr -d "\"' [:cntrl:]"; }
setting() { if [ -n "$2" ] && [ -z "$(of_user "$1")" ]; then printf '%s=%s # gpu.sh\n' "$1" "$2"; fi; }
any_file() { for file; do if [ -e "$file" ]; then return 0; fi; done && return 1; }
# What a program answers within 10 s. macOS has no timeout, and Perl in its place.
ask() {
    if command -v timeout >/dev/null; then timeout -s KILL 10 "$@"; else perl -e 'alarm 10; exec @ARGV or exit 1' "$@"; fi 2>/dev/null </dev/null || return 1
}
engine=none socket=''
ask_docker() { info=$(ask docker info --format '{{json .}}') && engine=docker; }
ask_podman() { info=$(ask podman info --format json) && engine=podman; }
ask_docker || ask_podman || info=''
case $info in
    *'"OperatingSystem":"Docker Desktop"'*) engine=desktop ;;
    *buildahVersion*) engine=podman ;; # by Docker's name, and below on Docker's socket
    *?) case $(ask docker version --format '{{json .Server}}') in *Podman*) engine=podman socket=yes ;; esac ;;
esac
# An engine elsewhere cannot be looked at from here: what it says of itself must do.
is_here=$(if [ "$system" = Linux ]; then echo yes; fi)
case $(ask docker context inspect --format '{{.Endpoints.docker.Host}}') in ssh:* | tcp:* | http*) is_here='' ;; esac
choose cpu 'no container engine answers'
is_wsl() { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }
# A Jetson's GPU is part of its processor: it has other device nodes, and no /dev/nvidia0 before JetPack 7.
is_jetson() { any_file /etc/nv_tegra_release /dev/nvgpu/igpu0 /dev/nvhost-gpu; }
has_gpu() { any_file /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/* || is_wsl || is_jetson; }
info_has() { printf '%s' "$info" | grep -Eq "$1"; }
# Docker passes on GPUs through this program alone, whatever runtimes are registered. It may be beside the runtime.
has_hook() {
    beside=${info#*'"nvidia":{"path":"'}
    command -v nvidia-container-runtime-hook >/dev/null ||
        any_file /usr/bin/nvidia-container-runtime-hook /usr/local/bin/nvidia-container-runtime-hook "${beside%%'"'*}-hook"
}
slices=''
if any_file /proc/driver/nvidia/capabilities/gpu*/mig/gi*; then slices='; its GPUs are cut into MIG slices: name one in DEVKIT_DEVICES'; fi
case $engine in
    podman)
        choose cpu 'Podman needs a CDI specification of the GPUs: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'
        if [ "$system" != Linux ]; then
            choose cpu 'the Podman machine has no CDI specification of an NVIDIA GPU'
            found=$(ask podman machine ssh 'grep -lsF nvidia.com/gpu /etc/cdi/* /var/run/cdi/*')
            if [ -n "$found" ]; then choose podman 'the Podman machine has a CDI specification of the NVIDIA GPU'; fi
        elif ! has_gpu; then
            choose cpu 'this host has no NVIDIA GPU'
        elif [ -n "$socket" ] && info_has '"ServerVersion":"([0-4]\.|5\.[0-3]\.)'; then # containers/podman issue 25196
            choose cpu 'through its socket Podman passes on GPUs from 5.4 on: update it, or use podman-compose with DEVKIT_GPU=podman'
        elif info_has '"nvidia\.com/gpu=all"' || grep -qsF nvidia.com/gpu /etc/cdi/* /var/run/cdi/*; then
            choose podman "Podman, and a CDI specification of the NVIDIA GPUs$slices"
        fi
        ;;
    desktop)
        choose cpu 'Docker Desktop has no NVIDIA GPU to pass on here'
        gpus=$(case $system in MINGW* | MSYS* | CYGWIN*) ask nvidia-smi -L ;; esac)
        if [ -n "$gpus" ] || is_wsl; then choose nvidia 'Docker Desktop passes on the NVIDIA GPU of Windows'; fi
        ;;
    docker)
        runtime=$(info_has nvidia-container-runtime && echo yes)
        # Engines up to 28.1 name the folders of CDI specifications, later ones the devices that they made of them.
        folders=$(printf '%s' "$info" | sed -n 's/.*"CDISpecDirs":\["\([^]]*\)"\].*/\1/p' | sed 's/","/ /g')
        if ! info_has '"ServerVersion":"(2[5-7]\.|28\.[01]\.)'; then folders=''; fi
        # shellcheck disable=SC2086
        has_cdi() { info_has '"nvidia\.com/gpu=all"' || { [ -n "$folders" ] && grep -rqsF nvidia.com/gpu $folders; }; }
        # In these modes of the toolkit its hook refuses what the nvidia runtime is for.
        hook_refuses() { grep -Eqs '^[[:space:]]*mode *= *"(cdi|csv)"' /etc/nvidia-container-runtime/config.toml; }
        if [ -n "$is_here" ] && ! has_gpu; then
            choose cpu "this host has no NVIDIA GPU${runtime:+, though its engine has the nvidia runtime}"
        elif [ -n "$is_here" ] && [ -n "$runtime" ] && is_jetson; then
            choose cpu 'this dev container is planned for x86_64 processors, and this is a Jetson'
        elif [ -n "$is_here" ] && hook_refuses && has_cdi; then
            choose cdi "the engine has CDI devices for the NVIDIA GPUs, and the toolkit's mode asks for them$slices"
        elif [ -n "$runtime" ] && { [ -z "$is_here" ] || has_hook; }; then
            choose nvidia "the engine has the nvidia runtime$slices"
        elif has_cdi; then
            choose cdi "the engine has CDI devices for the NVIDIA GPUs$slices"
        elif [ -n "$runtime" ]; then
            choose cpu 'the nvidia runtime is registered, but nvidia-container-runtime-hook is missing; devkit doctor says how to add it'
        else
            choose cpu 'the engine has neither the nvidia runtime nor CDI devices; devkit doctor says how to add them'
        fi
        ;;
esac

names() { printf '%s' "$devices" | sed "s|[^,][^,]*|\"$1&\"|g"; } # each of $devices in quotes, with $1 before it
# The long form works with every Compose; older ones pass over `gpus: all` without a word.
reserve() { echo "    deploy: {resources: {reservations: {devices: [{driver: $mode, $1, capabilities: [gpu]}]}}}"; }
overlay() {
    printf 'services:\n  gpu:\n' && variables=DEVKIT_GPU=$mode
    case $mode in
        nvidia) if [ "$devices" = all ]; then reserve 'count: all'; else reserve "device_ids: [$(names '')]"; fi ;;
        cdi) reserve "device_ids: [$(names nvidia.com/gpu=)]" ;;
        # Under SELinux a confined container may not open the GPU's device nodes.
        podman) printf '    devices: [%s]\n    security_opt: [label=disable]\n' "$(names nvidia.com/gpu=)" ;;
    esac
    sockets=''
    # Programs share a GPU by MPS through its daemon's folder, in one IPC namespace: without that CUDA ends with error 805.
    mps=$(printf '%s' "${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}" | grep -Ex '/[A-Za-z0-9._/-]+')
    if [ -n "$is_here" ] && [ "$mode" != podman ] && [ -S "$mps/control" ]; then
        sockets="$sockets${sockets:+, }\"$mps:$mps\"" && echo '    ipc: host'
        variables="$variables, CUDA_MPS_PIPE_DIRECTORY=$mps, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    fi
    if [ -n "$sockets" ]; then echo "    volumes: [$sockets]"; fi
    echo "    environment: [$variables]"
}

wanted=${DEVKIT_GPU:-$(of_user DEVKIT_GPU)}
case $wanted in
    '') ;;
    cpu | nvidia | cdi | podman) choose "$wanted" 'as set' ;;
    *) choose cpu "DEVKIT_GPU=$wanted is none of cpu, nvidia, cdi, podman" ;;
esac
devices=$(printf '%s' "${DEVKIT_DEVICES:-$(of_user DEVKIT_DEVICES)}" | tr -d ' [:cntrl:]')
chosen=${devices:+; DEVKIT_DEVICES=$devices}
devices=${devices:-all}
one='([0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z-]+)'
# A name that is not understood must not become every GPU of a host that others use, too.
if ! printf '%s\n' "$devices" | grep -Eqx "all|$one(,$one)*"; then
    choose cpu "DEVKIT_DEVICES=$devices names no GPUs (indices, GPU-... or MIG-... UUIDs, with commas between)" && chosen=''
elif [ "$mode" = podman ] && [ "$devices" != "${devices#*:}" ]; then # Compose parts a device's name at its colons
    choose cpu "DEVKIT_DEVICES=$devices: Podman takes a MIG slice by its MIG-... UUID alone" && chosen=''
fi
echo "devkit: DEVKIT_GPU=$mode: $why$chosen"

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
# NCCL and the loader workers of each process share one /dev/shm: with more than two GPUs it takes more of it.
set -- /dev/nvidia[0-9]*
gpus=$# shm=''
if [ "$devices" != all ]; then gpus=$(($(printf '%s' "$devices" | tr -cd , | wc -c) + 1)); fi
if [ "$gpus" -gt 2 ]; then shm=$((4 * gpus))gb; fi

write() { # renamed into place, so that Compose never reads half a file
    { [ ! -d "$1" ] && cat >"$1.$$" && mv -f "$1.$$" "$1"; } 2>/dev/null || { rm -f "$1.$$" && echo "devkit: could not write $1"; }
}
if [ "$mode" = cpu ]; then rm -f gpu.local.yml; else overlay | write gpu.local.yml; fi
{
    if [ -n "$users" ]; then printf '%s\n' "$users"; fi
    if [ "$mode" != cpu ]; then setting DEVKIT_GPU_FILE gpu.local; fi
    setting DEVKIT_PROJECT "quickstart-$(pwd | tr -d '\n' | cksum | tr -d -c '0-9' | cut -c 1-6)"
    setting DEVKIT_UID "$uid" && setting DEVKIT_GID "$gid" && setting DEVKIT_USERNS "$userns"
    setting DEVKIT_SHM_SIZE "$shm"
} | write "$env_file"
exit 0
