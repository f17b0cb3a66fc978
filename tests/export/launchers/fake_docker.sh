#!/bin/sh
# A stand-in for the docker command: it keeps volumes and one container in a folder, and records its calls.
# It is started as: fake_docker.sh FOLDER WORD... What it shall do lies in FOLDER: `info`, what `docker info` prints;
# `codes`, the exit codes of the starts to come, one a line; `absent`, so many questions that it does not hear.
set -eu
folder=$1
shift
if [ "${1:-}" = --context ]; then shift 2; fi
if [ -s "$folder/absent" ]; then
    sed -i 1d "$folder/absent"
    exit 1
fi
# Each word ends with a zero byte, and each command with a record separator more.
{ printf '%s\0' "$@"; printf '\036\0'; } >>"$folder/calls"

for last in "$@"; do :; done
case "$1 ${2:-}" in
    'info '*) cat "$folder/info" ;;
    'volume inspect') test -e "$folder/volume-$last" ;;
    'volume create') : >"$folder/volume-$last" ;;
    'volume rm') rm "$folder/volume-$last" ;;
    'container inspect')
        test -e "$folder/container"
        read -r made status code <"$folder/container" || :
        case $4 in
            *devkit.made*) echo "$made $status" ;;
            *ExitCode*) echo "$status $code" ;;
            *StartedAt*) echo 2026-11-21T00:00:00Z ;;
        esac
        ;;
    'container rm') rm "$folder/container" ;;
    'create '*)
        for word in "$@"; do
            case $word in devkit.made=*) echo "${word#devkit.made=} created 0" >"$folder/container" ;; esac
        done
        ;;
    'start '*)
        read -r made _ <"$folder/container" || :
        read -r code <"$folder/codes" || :
        sed -i 1d "$folder/codes"
        echo "$made exited $code" >"$folder/container"
        ;;
    'run '*)
        case " $* " in
            *' --device '*) test ! -e "$folder/no-devices" ;;
        esac
        case " $* " in
            *' echo "$(id -u)'*) echo 1000:1000 ;;
            *' stat -c '*) printf '44\n992\n' ;;
            *' --interactive '*' tar '*) cat >"$folder/piped-tar" ;;
            *' --interactive '*) cat >"$folder/piped-token" ;;
        esac
        ;;
esac
