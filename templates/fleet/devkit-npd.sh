#!/bin/sh
# A check for node-problem-detector: ends with 0 for a healthy node, 1 for a problem, 2 where that is not known.
# https://github.com/kubernetes/node-problem-detector/blob/master/docs/custom_plugin_monitor.md
# Beside devkit-npd.json, in the folder that it names. It runs where the driver is seen: in the host's namespaces.
line=$(@COMMAND@ doctor --format line --timeout 30 2>/dev/null)
echo "$line"
case $line in
    problems:*) exit 1 ;;
    healthy:* | warnings:* | no-gpu:*) exit 0 ;;
    *) exit 2 ;;
esac
