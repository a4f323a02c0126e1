"""Learned verifiers: classifiers of whole answers and of their steps, from a folder of safetensors.

Importing this loads no torch: a model is loaded in the worker process that judges, at its first call.
"""
