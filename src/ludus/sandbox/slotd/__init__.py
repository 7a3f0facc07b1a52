"""`slotd`: the program that runs slots on another machine or in a container.

    driver ── frames over stdio, or HTTP ──> slotd ──> slot 1: bash
                                                  └──> slot 2: bash   …

The driver sends it as one zip file (`remote/bundle.py`), so that nothing has to be installed there. A container needs
`bash`, the usual tools and Python 3.8 or later. slotd runs the same shells as the local backends: the zip contains
`shell.py` and what it needs (`remote/bundle.py` lists it), and the scripts in `slot_scripts/`, unchanged. Modules in
this folder import nothing else of Ludus and nothing outside the standard library.

Guarantees: slotd itself ends a command when its time is up, with or without the driver. An execution that is requested
twice runs once. When the driver is silent for `lapse` seconds, or closes its end of stdio, slotd ends every slot and
exits. Every request gets an answer. Nothing whose cost depends on what an agent has left runs on the event loop. On
request, a slot gets a port that the driver answers (`slot_port.py`). How well slots are isolated depends on what slotd
is allowed to do (`isolation.py`).
"""
