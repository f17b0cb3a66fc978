#!/bin/sh
# Fetch the doctor's findings, one file for each node: sh collect.sh [FOLDER]. devkit fleet compare reads FOLDER/facts.
# Exits with 1 if a pod has not reported yet.
set -eu
folder=${1:-reports}
if [ -e "$folder" ]; then
    echo "error: $folder is there already: move it away, or name another folder: sh collect.sh FOLDER" >&2
    exit 2
fi
pods=$(kubectl --namespace tide get pods --selector=app.kubernetes.io/instance=tide,app.kubernetes.io/component=doctor \
    --output='jsonpath={range .items[*]}{.metadata.name}{" "}{.spec.nodeName}{"\n"}{end}')
[ -n "$pods" ] || { echo "error: there are no pods of the check: kubectl apply -k deploy/kubernetes/checks" >&2; exit 1; }
mkdir -p "$folder/facts" "$folder/doctor"
echo "$pods" | {
    code=0
    while read -r pod node; do
        for kind in facts doctor; do
            file=$folder/$kind/${node:-$pod}.json
            kubectl --namespace tide exec "$pod" -- cat "/reports/$kind.json" </dev/null >"$file" 2>/dev/null || {
                rm -f "$file"
                echo "no $kind yet: $pod${node:+ on $node}" >&2
                code=1
            }
        done
    done
    exit "$code"
}
