"""What holds for all tests."""

import os

# They start a Docker engine, podman, sshd and stand-ins of clouds, and take minutes: `make test-backends`.
collect_ignore = [] if os.environ.get("LUDUS_BACKENDS") else ["sandbox/backends"]
