"""`slotd`: the program that runs slots where the driver is not: in a container, on another host.

    driver ── frames over stdio, or HTTP ──> slotd ──> slot 1: supervisor ─> bash
                                                  └──> slot 2: supervisor ─> bash   …

The driver sends it along as one zip file (`sandbox.bundle`), so that nothing has to be installed there: a container
needs `bash`, the usual tools and Python 3.8 or later. It runs the same shells as the local backends do: `shell.py`,
`processes.py` and the scripts in `slot_scripts/` are in the zip word for word. Nothing here may import anything else of Ludus,
nor anything that is not in the standard library.

Guarantees: a command is ended by slotd itself when its time is up, whether the driver is there or not; an execution
that is asked for twice runs once; when the driver falls silent for `lapse` seconds, or its end of stdio closes, every
slot is ended and slotd exits. A slot gets a door to the driver when the driver asks for one: see `door.py`. How well
slots are kept apart depends on what slotd is allowed to do: see `enter.py`.
"""
