#!/bin/sh
# A check for node-problem-detector: exits with 0 for a healthy node, 1 for a problem, 2 if unknown.
# https://github.com/kubernetes/node-problem-detector/blob/master/docs/custom_plugin_monitor.md
# Put it next to devkit-npd.json, in the folder set there. It runs in the host's namespaces, where it sees the driver.
line=$(@COMMAND@ doctor --format line --timeout 30 2>/dev/null)
echo "$line"
case $line in
    problems:*) exit 1 ;;
    healthy:* | warnings:* | no-gpu:*) exit 0 ;;
    *) exit 2 ;;
esac
