#!/bin/sh
# The last `python` of a slot's PATH, for systems that have only python3.
exec python3 "$@"
