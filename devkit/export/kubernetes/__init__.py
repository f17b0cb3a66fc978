"""Kubernetes: manifests with a reason beside every choice, laid out for kubectl apply -k."""

from devkit.export.kubernetes.rendering import render
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.targets import Target

__all__ = ["TARGET", "KubernetesSettings"]

TARGET = Target("kubernetes", "Kubernetes manifests, for kubectl apply -k.", KubernetesSettings, render)
