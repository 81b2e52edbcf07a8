"""What error messages tell the author of a program of the DSL to write."""

from __future__ import annotations

from penstock.program.advice import Advice

OF_DSL = Advice(
    first_step="builder.stream(TOPIC) is the first step",
    declare="declare it with builder.add_state_store",
    name_store="name it in process(..., stores=[{store}])",
    connect="connect it: process(..., stores=[{store}])",
    declare_for="If another verb declares it, connect it: process(..., stores=[{store}]); else declare it: "
    "process(..., stores=[key_value_store({store})])",
    repartition="put repartition(NAME) in front of one of them",
    write="to(TOPIC)",
    timers="write process(..., timers=True)",
)
