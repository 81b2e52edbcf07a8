"""The compiled parts, which setup.cfg cannot name. Each is optional: without a C compiler it is left out."""

from setuptools import Extension, setup

_KAFKA = "plugins/logs/kafka/_columns"
PARTS = {
    "penstock.compiled._records": ["core/compiled/_records.c"],
    "penstock.plugins.logs.kafka._columns": [f"{_KAFKA}.c", f"{_KAFKA}_consume.c", f"{_KAFKA}_produce.c"],
}
HEADERS = {"penstock.plugins.logs.kafka._columns": [f"{_KAFKA}.h"]}

setup(
    ext_modules=[
        Extension(name, sources, depends=HEADERS.get(name, []), extra_compile_args=["-O2"], optional=True)
        for name, sources in PARTS.items()
    ]
)
