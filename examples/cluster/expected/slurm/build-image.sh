#!/bin/bash
# Written by devkit 0.2.0. To change it, edit [job] in devkit.toml and run `devkit export slurm` again.
#
# Build the image file for Apptainer, on a cluster machine where building is allowed. A private registry requires
# a login first: apptainer registry login.
#
# The image is unpacked and packed again, which needs about three times its size, and /tmp is often in memory.
# DEVKIT_TMP sets a different folder. Sources: https://apptainer.org/docs/user/main/build_env.html

set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
image="${SCRATCH:-$HOME}/devkit/tide.sif"
folder=${image%/*}
export APPTAINER_TMPDIR="${DEVKIT_TMP:-$folder/build}"
export APPTAINER_CACHEDIR="${APPTAINER_CACHEDIR:-$folder/cache}"

command -v apptainer >/dev/null 2>&1 || {
    printf 'build-image.sh: apptainer is not installed here; load its module, and pass it with --module\n' >&2
    exit 2
}
mkdir -p "$APPTAINER_TMPDIR" "$APPTAINER_CACHEDIR"
# A running job keeps the old file, because the new one takes its name only when it is complete.
apptainer build --force "$image.new" "$here/image.def"
mv -f "$image.new" "$image"
printf 'build-image.sh: %s\n' "$image"
