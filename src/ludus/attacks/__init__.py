"""What agents do to be paid without solving anything: attacks on verifiers, as data."""
