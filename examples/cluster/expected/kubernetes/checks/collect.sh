#!/bin/sh
# Written by devkit 0.2.0. To change it, edit [job] and [job.kubernetes] in devkit.toml and run `devkit export
# kubernetes` again.
#
# Fetches what the checks of tide printed, as one file for each node: what devkit fleet compare reads.
#     sh collect.sh [FOLDER]
# FOLDER/facts and FOLDER/doctor come from the pods of checks/doctor, FOLDER/facts-with-gpus and FOLDER/verify from
# those of checks/verify. Ends with 1 when a pod has said nothing yet.
set -eu

checks=deploy/kubernetes/checks
folder=${1:-reports}
if [ -e "$folder" ]; then
    echo "error: $folder is there already: move it away, or name another folder: sh collect.sh FOLDER" >&2
    exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

in_cluster() {
    kubectl --namespace tide "$@"
}

# Which pods of a component there are, as POD NODE PHASE, and what they printed. A pod that has not started yet is no
# reason to give up the others.
read_pods() {
    chosen="--selector=app.kubernetes.io/instance=tide-$1"
    in_cluster get pods "$chosen" \
        --output='jsonpath={range .items[*]}{.metadata.name}{" "}{.spec.nodeName}{" "}{.status.phase}{"\n"}{end}' \
        > "$scratch/pods"
    : > "$scratch/log"
    if [ -s "$scratch/pods" ]; then
        in_cluster logs "$chosen" --tail=-1 --ignore-errors > "$scratch/log"
    fi
}

# A report is one line: {"node": "NAME", and then the document without its first brace. All others are for people.
split_reports() {
    FOLDER=$folder COMPONENT=$1 FACTS=$2 awk '
        index($0, "{\"node\": \"") == 1 {
            rest = substr($0, 11)
            node = substr(rest, 1, index(rest, "\"") - 1)
            rest = substr(rest, length(node) + 4)
            if (node !~ /^[a-z0-9][-a-z0-9.]*$/) next
            if (!match(rest, /^ *"schema": "devkit\.[a-z]+\//)) next
            kind = substr(rest, 1, RLENGTH - 1)
            sub(/.*\./, "", kind)
            if (kind == "facts") kind = ENVIRON["FACTS"]
            else if (kind != ENVIRON["COMPONENT"]) next
            file = ENVIRON["FOLDER"] "/" kind "/" node ".json"
            print "{" rest > file
            close(file)
        }
        index($0, "error: ") == 1 { print | "cat 1>&2" }
    ' "$scratch/log"
}

all=0
silent=0
for component in doctor verify; do
    facts=facts
    [ "$component" = doctor ] || facts="facts-with-gpus"
    read_pods "$component"
    [ -s "$scratch/pods" ] || continue
    mkdir -p "$folder/$facts" "$folder/$component"
    split_reports "$component" "$facts"
    while read -r pod node phase; do
        all=$((all + 1))
        if [ -z "$phase" ]; then
            # The field between is empty for a pod that has no node yet.
            phase=$node
            node=
        fi
        if [ ! -s "$folder/$component/$node.json" ]; then
            silent=$((silent + 1))
            echo "no report yet: $pod${node:+ on $node}, $phase" >&2
        fi
    done < "$scratch/pods"
done

if [ "$all" -eq 0 ]; then
    echo "error: there are no pods of the checks: kubectl apply -k $checks/doctor" >&2
    exit 1
fi
echo "$((all - silent)) of $all pods have reported, in $folder. What differs: devkit fleet compare $folder/facts"
[ "$silent" -eq 0 ]
