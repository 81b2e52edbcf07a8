"""The compiled parts, which setup.cfg cannot name. Each is optional: without a C compiler it is left out."""

from setuptools import Extension, setup

PARTS = {"penstock.compiled._records": "core/compiled/_records.c"}

setup(
    ext_modules=[Extension(name, [source], extra_compile_args=["-O2"], optional=True) for name, source in PARTS.items()]
)
