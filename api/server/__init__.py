"""The service: what ``jurat serve`` runs. Routes are thin; facts and SQL are in ``platform/``."""
