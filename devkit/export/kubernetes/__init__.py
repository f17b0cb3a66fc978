"""Kubernetes: manifests with a reason beside every choice, laid out for kubectl apply -k."""

from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.target import render_kubernetes
from devkit.export.targets import ExportTarget

__all__ = ["TARGET", "KubernetesSettings"]

TARGET = ExportTarget("kubernetes", KubernetesSettings, render_kubernetes)
