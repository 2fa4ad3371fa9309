"""Pods planned with the real TPU compiler, before there is one."""
